fn codes8(row: u32, i: u32) -> Eight {
    let at = row * params.row_words + i * 8u;
    let a = vec4(codes[at], codes[at + 1u], codes[at + 2u], codes[at + 3u]);
    let b = vec4(codes[at + 4u], codes[at + 5u], codes[at + 6u], codes[at + 7u]);
    return Eight(bitcast<vec4<f32>>(a), bitcast<vec4<f32>>(b));
}
