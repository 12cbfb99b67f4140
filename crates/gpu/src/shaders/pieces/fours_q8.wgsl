// Two words of a cache of codes: eight values. A thread holds them and their scale.
const FOUR: u32 = 8u;
alias Four = vec2<u32>;

// Twos of a row with `n` twos of codes: behind them there is a half, the scale, for every four, in fours of words.
fn row_twos(n: u32) -> u32 {
    return n + (n + 31u) / 32u * 2u;
}

// The scale of codes `i`, in what holds four of them.
fn scale_in(words: vec2<u32>, i: u32) -> u32 {
    let scales = unpack2x16float(select(words.x, words.y, (i / 8u) % 2u == 1u));
    return bitcast<u32>(select(scales.x, scales.y, (i / 4u) % 2u == 1u));
}

// What of a row, which is a head of a slot, a thread holds.
fn key_four(row: u32, i: u32) -> vec4<u32> {
    let at = row * row_twos(params.key_fours);
    return vec4(key_words(at + i), scale_in(key_words(at + params.key_fours + i / 16u), i), 0u);
}

fn value_four(row: u32, i: u32) -> vec4<u32> {
    let at = row * row_twos(params.value_stride);
    return vec4(value_words(at + i), scale_in(value_words(at + params.value_stride + i / 16u), i), 0u);
}

// The first or the second four values.
fn quad_of(held: vec4<u32>, k: u32) -> vec4<f32> {
    return bitcast<f32>(held.z) * codes_of(select(held.x, held.y, k == 1u));
}
