// On [q | k | v], per head: q / sqrt(|q|^2 + 1e-6) / sqrt(dk), k / sqrt(|k|^2 + 1e-6); v is copied. A workgroup has one slice of
// dk channels: one head of q or k, or a piece of v.
struct Params {
    rows: u32,
    channels: u32,
    key_total: u32,
    key_dim: u32,
    // Slices of a row.
    slices: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let n = folded(place);
    let row = n / params.slices;
    if row >= params.rows {
        return;
    }
    let first = n % params.slices * params.key_dim;
    let end = min(first + params.key_dim, params.channels);
    var squares = 0.0;
    for (var c = first + place.thread; c < end; c += THREADS) {
        let value = x[row * params.channels + c];
        squares += value * value;
    }
    var factor = 1.0 / sqrt(workgroup_sum(vec2(squares, 0.0), place).x + 1e-6);
    if first < params.key_total {
        factor /= sqrt(f32(params.key_dim));
    } else if first >= 2u * params.key_total {
        factor = 1.0;
    }
    for (var c = first + place.thread; c < end; c += THREADS) {
        y[row * params.channels + c] = x[row * params.channels + c] * factor;
    }
}
