fn codes8(row: u32, i: u32) -> Eight {
    let word = codes[row * params.row_words + i / 4u] >> (8u * (i & 3u));
    let a = (vec4(word) >> vec4(0u, 1u, 2u, 3u)) & vec4(1u);
    let b = (vec4(word) >> vec4(4u, 5u, 6u, 7u)) & vec4(1u);
    return Eight(numbers(a), numbers(b));
}
