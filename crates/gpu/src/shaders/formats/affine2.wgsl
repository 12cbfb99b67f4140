fn codes8(row: u32, i: u32) -> Eight {
    let word = codes[row * params.row_words + i / 2u] >> (16u * (i & 1u));
    let a = (vec4(word) >> vec4(0u, 2u, 4u, 6u)) & vec4(3u);
    let b = (vec4(word) >> vec4(8u, 10u, 12u, 14u)) & vec4(3u);
    return Eight(numbers(a), numbers(b));
}
