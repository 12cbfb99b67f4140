// Rows that are appended to a cache of codes.

// Word `i` of a row of `width` values.
fn stored_word(row: u32, i: u32, width: u32) -> u32 {
    let code_words = (width + 15u) / 16u * 4u;
    if i < code_words {
        return stored_codes(row, 4u * i, group_scale(row, i / 8u));
    }
    let group = 2u * (i - code_words);
    return group_scale(row, group) | (group_scale(row, group + 1u) << 16u);
}
