// What is added to results. Without a bias or a residual, the first of whatever stands in is
// loaded, and counts for nothing.
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> residual: array<f32>;

fn bias_of(result: u32) -> f32 {
    return bias[params.has_bias * result];
}

fn residual_of(result: u32) -> f32 {
    return residual[ready(params.has_residual * result)];
}
