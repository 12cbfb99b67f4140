// A scale and a bias in one word.
fn scale(row: u32, i: u32) -> vec2<f32> {
    let word = scales[row * params.row_scales + i / (GROUP / 8u)];
    return from_middle(bitcast<vec2<f32>>(vec2(word << 16u, word & 0xffff0000u)));
}
