// A cache of f32: a word is one value.
const WORD_VALUES: u32 = 1u;

fn packed(values: vec2<f32>) -> u32 {
    return bitcast<u32>(values.x);
}

fn unpacked(word: u32) -> vec2<f32> {
    return vec2(bitcast<f32>(word), 0.0);
}
