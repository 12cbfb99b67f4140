// Rows that are appended to a cache of f16.

// Word `i` of a row, whose values are the kernel's `stored_value(row, channel)`, 0 behind the last of `width`.
fn stored_word(row: u32, i: u32, width: u32) -> u32 {
    return packed(vec2(stored_value(row, 2u * i), stored_value(row, 2u * i + 1u)));
}
