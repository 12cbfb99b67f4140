// y[r] = rms(v[r]) * weight * silu(z[r]). A row is one head's slice, one per workgroup.
struct Params {
    width: u32,
    rows: u32,
    eps: f32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> v: array<f32>;
@group(0) @binding(1) var<storage, read> z: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let row = folded(place);
    if row >= params.rows {
        return;
    }
    let start = row * params.width;
    var squares = vec2(0.0);
    for (var c = place.thread; c < params.width; c += THREADS) {
        squares += squares_of(v[start + c]);
    }
    let inverse = inverse_rms(squares, params.width, params.eps, place);
    for (var c = place.thread; c < params.width; c += THREADS) {
        y[start + c] = v[start + c] * inverse * weight[c] * silu(z[start + c]);
    }
}
