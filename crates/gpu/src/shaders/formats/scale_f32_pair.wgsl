// A scale and a bias in a word each.
fn scale(row: u32, i: u32) -> vec2<f32> {
    let at = row * params.row_scales + i / (GROUP / 8u) * 2u;
    return from_middle(bitcast<vec2<f32>>(vec2(scales[at], scales[at + 1u])));
}
