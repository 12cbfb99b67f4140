// y = (r + rms(x) * w) * factor. One row per workgroup.
struct Params {
    width: u32,
    rows: u32,
    eps: f32,
    // Factor: 0 none, 1 `scalar`, 2 one per channel.
    factor_kind: u32,
    scalar: f32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> r: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<f32>;
@group(0) @binding(3) var<storage, read> factors: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let row = folded(place);
    if row >= params.rows {
        return;
    }
    let start = row * params.width;
    var squares = vec2(0.0);
    for (var c = place.thread; c < params.width; c += THREADS) {
        squares += squares_of(x[start + c]);
    }
    let inverse = inverse_rms(squares, params.width, params.eps, place);
    for (var c = place.thread; c < params.width; c += THREADS) {
        var value = r[start + c] + x[start + c] * inverse * w[c];
        if params.factor_kind == 1u {
            value *= params.scalar;
        } else if params.factor_kind == 2u {
            value *= factors[c];
        }
        y[start + c] = value;
    }
}
