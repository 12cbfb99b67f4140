// A scale and a bias in one word.
alias Scale = u32;

fn scale_at(row: u32, i: u32) -> Scale {
    return scales[row * params.row_scales + i / (GROUP / 8u)];
}

fn scale_of(word: Scale) -> vec2<f32> {
    return from_middle(bitcast<vec2<f32>>(vec2(word << 16u, word & 0xffff0000u)));
}

fn scale(row: u32, i: u32) -> vec2<f32> {
    return scale_of(scale_at(row, i));
}
