// Four words of a cache of f32: four values.
const FOUR: u32 = 4u;
alias Four = vec4<u32>;

// What of a row, which is a head of a slot, a thread holds.
fn key_four(row: u32, i: u32) -> vec4<u32> {
    return key_words(row * params.key_fours + i);
}

fn value_four(row: u32, i: u32) -> vec4<u32> {
    return value_words(row * params.value_stride + i);
}

// All of them.
fn quad_of(words: vec4<u32>, k: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(words);
}
