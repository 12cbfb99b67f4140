// Four values of four words of a cache of f16: the first or the second four.
fn quad_of(words: vec4<u32>, k: u32) -> vec4<f32> {
    let two = select(words.xy, words.zw, k == 1u);
    return vec4(unpack2x16float(two.x), unpack2x16float(two.y));
}
