// BITS: 3, 5 or 6. Eight codes fill BITS bytes and never reach into a third word.
fn code(low: u32, high: u32, at: u32) -> u32 {
    let mask = (1u << BITS) - 1u;
    if at >= 32u {
        return (high >> (at - 32u)) & mask;
    }
    let rest = select(0u, high << ((32u - at) & 31u), at > 0u);
    return ((low >> at) | rest) & mask;
}

fn codes8(row: u32, i: u32) -> Eight {
    let bit = i * 8u * BITS;
    let at = row * params.row_words + bit / 32u;
    let shift = bit & 31u;
    let words = vec2(codes[at], codes[at + 1u]);
    let low = (words.x >> shift) | select(0u, words.y << ((32u - shift) & 31u), shift > 0u);
    let high = words.y >> shift;
    let a = vec4(code(low, high, 0u), code(low, high, BITS), code(low, high, 2u * BITS), code(low, high, 3u * BITS));
    let b = vec4(code(low, high, 4u * BITS), code(low, high, 5u * BITS), code(low, high, 6u * BITS), code(low, high, 7u * BITS));
    return Eight(numbers(a), numbers(b));
}
