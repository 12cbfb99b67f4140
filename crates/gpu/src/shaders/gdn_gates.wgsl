// g = exp(-exp(a_log) softplus(a + dt_bias)), beta = sigmoid(b)
struct Params {
    len: u32,
    heads: u32,
    // Values from row to row of a and b.
    stride: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read> a_log: array<f32>;
@group(0) @binding(3) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> g: array<f32>;
@group(0) @binding(5) var<storage, read_write> beta: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let i = folded(place) * THREADS + place.thread;
    if i < params.len {
        let head = i % params.heads;
        let source = i / params.heads * params.stride + head;
        g[i] = decay(a[source], a_log[head], dt_bias[head]);
        beta[i] = sigmoid(b[source]);
    }
}
