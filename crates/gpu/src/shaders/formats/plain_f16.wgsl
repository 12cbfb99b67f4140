fn codes8(row: u32, i: u32) -> Eight {
    let at = row * params.row_words + i * 4u;
    let a = vec4(unpack2x16float(codes[at]), unpack2x16float(codes[at + 1u]));
    let b = vec4(unpack2x16float(codes[at + 2u]), unpack2x16float(codes[at + 3u]));
    return Eight(a, b);
}
