// A scale in a word, no bias.
fn scale(row: u32, i: u32) -> vec2<f32> {
    return vec2(bitcast<f32>(scales[row * params.row_scales + i / (GROUP / 8u)]), 0.0);
}
