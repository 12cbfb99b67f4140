// A weight whose codes are multiplied as whole numbers: rows of `row_words` words of codes, and of `row_scales` words of scales. A
// group is 32 neighbouring values, whatever shares a scale.
@group(0) @binding(0) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> scales: array<u32>;

struct Eight {
    a: vec4<f32>,
    b: vec4<f32>,
}

// A group of inputs: of each eight the high and the low digits, in the order of its codes.
struct Digits {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
}

// A scale and a bias for codes counted from 0, made one for codes counted from the middle.
fn from_middle(pair: vec2<f32>) -> vec2<f32> {
    return vec2(pair.x, fma(MIDDLE, pair.x, pair.y));
}

// The product of weights, their codes' dot products and their scale and bias, with inputs of this sum, but for the inputs' scale.
fn scaled(parts: vec2<i32>, s: vec2<f32>, sum: i32) -> f32 {
    return s.x * f32(256 * parts.x + parts.y - ABOVE * sum) + s.y * f32(sum);
}
