// y = rms(a) * a_weight + rms(b) * b_weight. One row per workgroup.
struct Params {
    width: u32,
    rows: u32,
    eps: f32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> a_weight: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read> b_weight: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let row = folded(place);
    if row >= params.rows {
        return;
    }
    let start = row * params.width;
    var squares_a = vec2(0.0);
    var squares_b = vec2(0.0);
    for (var c = place.thread; c < params.width; c += THREADS) {
        squares_a += squares_of(a[start + c]);
        squares_b += squares_of(b[start + c]);
    }
    let inverse_a = inverse_rms(squares_a, params.width, params.eps, place);
    let inverse_b = inverse_rms(squares_b, params.width, params.eps, place);
    for (var c = place.thread; c < params.width; c += THREADS) {
        y[start + c] = a[start + c] * inverse_a * a_weight[c] + b[start + c] * inverse_b * b_weight[c];
    }
}
