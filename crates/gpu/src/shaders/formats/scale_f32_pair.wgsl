// A scale and a bias in a word each.
alias Scale = vec2<u32>;

fn scale_at(row: u32, i: u32) -> Scale {
    let at = row * params.row_scales + i / (GROUP / 8u) * 2u;
    return vec2(scales[at], scales[at + 1u]);
}

fn scale_of(words: Scale) -> vec2<f32> {
    return from_middle(bitcast<vec2<f32>>(words));
}

fn scale(row: u32, i: u32) -> vec2<f32> {
    return scale_of(scale_at(row, i));
}
