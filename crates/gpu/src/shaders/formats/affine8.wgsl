fn bytes_of(word: u32) -> vec4<u32> {
    return (vec4(word) >> vec4(0u, 8u, 16u, 24u)) & vec4(255u);
}

fn codes8(row: u32, i: u32) -> Eight {
    let at = row * params.row_words + i * 2u;
    return Eight(numbers(bytes_of(codes[at])), numbers(bytes_of(codes[at + 1u])));
}
