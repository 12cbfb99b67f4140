fn codes8(row: u32, i: u32) -> Eight {
    let word = codes[row * params.row_words + i];
    let a = (vec4(word) >> vec4(0u, 4u, 8u, 12u)) & vec4(15u);
    let b = (vec4(word) >> vec4(16u, 20u, 24u, 28u)) & vec4(15u);
    return Eight(numbers(a), numbers(b));
}
