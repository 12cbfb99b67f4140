// Rows of a cache of f32: a word is one value.
const WORD_VALUES: u32 = 1u;

// Four channels of the key of a row, which is a head of a slot.
fn key_quad(row: u32, quad: u32) -> vec4<f32> {
    let at = row * params.key_words + 4u * quad;
    return bitcast<vec4<f32>>(vec4(keys[at], keys[at + 1u], keys[at + 2u], keys[at + 3u]));
}

// The channels of a word of its value.
fn value_pair(row: u32, word: u32) -> vec2<f32> {
    return vec2(bitcast<f32>(values[row * params.value_stride + word]), 0.0);
}
