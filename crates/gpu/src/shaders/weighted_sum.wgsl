// y[t] = sum_k w[t, k] values[t, k]
struct Params {
    len: u32,
    width: u32,
    top_k: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> values: array<f32>;
@group(0) @binding(1) var<storage, read> weights: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let i = folded(place) * THREADS + place.thread;
    if i >= params.len {
        return;
    }
    let token = i / params.width;
    var sum = 0.0;
    for (var k = 0u; k < params.top_k; k++) {
        let pair = token * params.top_k + k;
        sum += weights[pair] * values[pair * params.width + i % params.width];
    }
    y[i] = sum;
}
