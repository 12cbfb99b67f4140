// Four-bit floats: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
fn e2m1(code: vec4<u32>) -> vec4<f32> {
    let exponent = (code >> vec4(1u)) & vec4(3u);
    let half = code & vec4(1u);
    let sign = (code & vec4(8u)) << vec4(28u);
    let normal = ((exponent + vec4(126u)) << vec4(23u)) | (half << vec4(22u));
    let small = half * vec4(0x3f000000u);
    return bitcast<vec4<f32>>(select(normal, small, exponent == vec4(0u)) | sign);
}

fn codes8(row: u32, i: u32) -> Eight {
    let word = codes[row * params.row_words + i];
    let a = (vec4(word) >> vec4(0u, 4u, 8u, 12u)) & vec4(15u);
    let b = (vec4(word) >> vec4(16u, 20u, 24u, 28u)) & vec4(15u);
    return Eight(e2m1(a), e2m1(b));
}
