fn two_bf16(word: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(vec2(word << 16u, word & 0xffff0000u));
}

fn codes8(row: u32, i: u32) -> Eight {
    let at = row * params.row_words + i * 4u;
    let a = vec4(two_bf16(codes[at]), two_bf16(codes[at + 1u]));
    let b = vec4(two_bf16(codes[at + 2u]), two_bf16(codes[at + 3u]));
    return Eight(a, b);
}
