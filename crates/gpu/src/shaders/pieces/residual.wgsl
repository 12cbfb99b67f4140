// A norm beside a residual: what it takes, and the factor on its result.
struct Params {
    width: u32,
    rows: u32,
    eps: f32,
    // Factor: 0 none, 1 `scalar`, 2 one per channel.
    factor_kind: u32,
    scalar: f32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> residual: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> factors: array<f32>;

fn with_factor(value: f32, c: u32) -> f32 {
    if params.factor_kind == 1u {
        return value * params.scalar;
    }
    if params.factor_kind == 2u {
        return value * factors[c];
    }
    return value;
}
