// A scale and a bias in one word.
fn scale(row: u32, i: u32) -> vec2<f32> {
    return from_middle(unpack2x16float(scales[row * params.row_scales + i / (GROUP / 8u)]));
}
