// Heads as they are normalised, side by side, and their turn by a token's angles.
var<workgroup> head_values: array<f32, HEADS * WIDEST>;

// Which of the pairs a channel belongs to; one of them for channels that do not turn.
fn pair_of(c: u32) -> u32 {
    let beside = select(c, c - params.pairs, c >= params.pairs);
    return min(select(beside, c / 2u, params.interleaved != 0u), max(params.pairs, 1u) - 1u);
}

// Channel `c` of the head that begins at `base`, turned.
fn turned(base: u32, c: u32, turn: vec2<f32>) -> f32 {
    let interleaved = params.interleaved != 0u;
    let second = select(c >= params.pairs, (c & 1u) == 1u, interleaved);
    let distance = select(params.pairs, 1u, interleaved);
    let partner = select(c + distance, c - distance, second);
    let inside = c < 2u * params.pairs;
    let own = head_values[base + c];
    let other = head_values[base + select(c, partner, inside)];
    return select(own, own * turn.x + select(-other, other, second) * turn.y, inside);
}
