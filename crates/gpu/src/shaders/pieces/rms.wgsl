// The square of a value, and a far smaller multiple of it for when the squares' sum is too large for a float.
fn squares_of(x: f32) -> vec2<f32> {
    let small = x * 0x1p-60;
    return vec2(x * x, small * small);
}

// 1 / sqrt(mean + eps) from every thread's sum of squares. In this form and not by `inverseSqrt`, which may be less exact.
fn inverse_rms(squares: vec2<f32>, width: u32, eps: f32, place: Place) -> f32 {
    let sums = workgroup_sum(squares, place);
    if sums.x < 3.0e38 {
        return 1.0 / sqrt(sums.x / f32(width) + eps);
    }
    return 0x1p-60 / sqrt(sums.y / f32(width));
}
