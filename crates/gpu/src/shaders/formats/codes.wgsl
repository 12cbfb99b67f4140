// A weight on the device: rows of `row_words` words of codes, and of `row_scales` words of scales.
// Every format says what eight neighbouring values are: `codes8` numbers, to be multiplied by `scale(..).x`, and
// `scale(..).y` to be added to each.
@group(0) @binding(0) var<storage, read> codes: array<u32>;
@group(0) @binding(1) var<storage, read> scales: array<u32>;

struct Eight {
    a: vec4<f32>,
    b: vec4<f32>,
}

// Codes as floats, counted from the middle of their range. The bits of a float are put together: cheaper than a conversion, which
// GPUs do at a quarter of their rate. From the middle, because a group's bias usually takes the mean away again: what is
// not there in the first place costs no precision.
fn numbers(code: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(code | vec4(0x4b000000u)) - vec4(8388608.0 + MIDDLE);
}

fn sum8(v: Eight) -> f32 {
    let s = v.a + v.b;
    return (s.x + s.y) + (s.z + s.w);
}

fn dot8(v: Eight, w: Eight) -> f32 {
    return dot(v.a, w.a) + dot(v.b, w.b);
}

// A scale and a bias for codes counted from 0, made one for codes counted from the middle.
fn from_middle(pair: vec2<f32>) -> vec2<f32> {
    return vec2(pair.x, fma(MIDDLE, pair.x, pair.y));
}
