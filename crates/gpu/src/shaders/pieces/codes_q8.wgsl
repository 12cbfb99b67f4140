// Codes of a cache as numbers: a float's bits are put together, counted from -128.
fn codes_of(word: u32) -> vec4<f32> {
    let bytes = word ^ 0x80808080u;
    let parts = vec4(bytes & 0xffu, (bytes >> 8u) & 0xffu, (bytes >> 16u) & 0xffu, bytes >> 24u);
    return bitcast<vec4<f32>>(parts | vec4(0x4b000000u)) - 8388736.0;
}
