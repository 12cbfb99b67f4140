// Four words of a cache of f16: eight values.
const FOUR: u32 = 8u;
alias Four = vec4<u32>;

// What of a row, which is a head of a slot, a thread holds.
fn key_four(row: u32, i: u32) -> vec4<u32> {
    return key_words(row * params.key_fours + i);
}

fn value_four(row: u32, i: u32) -> vec4<u32> {
    return value_words(row * params.value_stride + i);
}

// The first or the second four values.
fn quad_of(words: vec4<u32>, k: u32) -> vec4<f32> {
    let two = select(words.xy, words.zw, k == 1u);
    return vec4(unpack2x16float(two.x), unpack2x16float(two.y));
}
