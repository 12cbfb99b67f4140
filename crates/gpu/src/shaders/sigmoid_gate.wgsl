// y = x * sigmoid(gate)
struct Params {
    len: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let i = folded(place) * THREADS + place.thread;
    if i < params.len {
        y[i] = x[i] * sigmoid(gate[i]);
    }
}
