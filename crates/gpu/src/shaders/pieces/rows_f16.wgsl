// Rows of a cache of f16: a word is two values.
const WORD_VALUES: u32 = 2u;

// Four channels of the key of a row, which is a head of a slot.
fn key_quad(row: u32, quad: u32) -> vec4<f32> {
    let at = row * params.key_words + 2u * quad;
    return vec4(unpack2x16float(keys[at]), unpack2x16float(keys[at + 1u]));
}

// The channels of a word of its value.
fn value_pair(row: u32, word: u32) -> vec2<f32> {
    return unpack2x16float(values[row * params.value_stride + word]);
}
