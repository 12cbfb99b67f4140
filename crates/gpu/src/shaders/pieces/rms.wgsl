// The square of a value, and a far smaller multiple of it for when the squares' sum is too large for a float.
fn squares_of(x: f32) -> vec2<f32> {
    let small = x * 0x1p-60;
    return vec2(x * x, small * small);
}

// The same of eight.
fn squares_of8(a: vec4<f32>, b: vec4<f32>) -> vec2<f32> {
    let small_a = a * 0x1p-60;
    let small_b = b * 0x1p-60;
    return vec2(dot(a, a) + dot(b, b), dot(small_a, small_a) + dot(small_b, small_b));
}

// 1 / sqrt(mean + eps) from the sum of squares. In this form and not by `inverseSqrt`, which may be less exact.
fn inverse_of(sums: vec2<f32>, width: u32, eps: f32) -> f32 {
    if sums.x < 3.0e38 {
        return 1.0 / sqrt(sums.x / f32(width) + eps);
    }
    return 0x1p-60 / sqrt(sums.y / f32(width));
}

// The same from every thread's. All threads of the workgroup must call it.
fn inverse_rms(squares: vec2<f32>, width: u32, eps: f32, place: Place) -> f32 {
    return inverse_of(workgroup_sum(squares, place), width, eps);
}

// Values that a thread keeps from the sum of squares to the norm, where a kernel keeps any: all it has of a row of HELD * THREADS.
const HELD: u32 = 4u;
