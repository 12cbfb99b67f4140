// Eight-bit floats with four bits of exponent.
fn e4m3(code: vec4<u32>) -> vec4<f32> {
    let exponent = (code >> vec4(3u)) & vec4(15u);
    let mantissa = code & vec4(7u);
    let normal = bitcast<vec4<f32>>(((exponent + vec4(120u)) << vec4(23u)) | (mantissa << vec4(20u)));
    let small = vec4<f32>(mantissa) * 0.001953125;
    let size = select(normal, small, exponent == vec4(0u));
    return select(size, -size, (code & vec4(128u)) != vec4(0u));
}

fn bytes_of(word: u32) -> vec4<u32> {
    return (vec4(word) >> vec4(0u, 8u, 16u, 24u)) & vec4(255u);
}

fn codes8(row: u32, i: u32) -> Eight {
    let at = row * params.row_words + i * 2u;
    return Eight(e4m3(bytes_of(codes[at])), e4m3(bytes_of(codes[at + 1u])));
}
