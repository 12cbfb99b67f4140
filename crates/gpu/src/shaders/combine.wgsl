// y[t] = h[t] + moe[t], plus shared[t], or sigmoid(gate[t]) * shared[t].
struct Params {
    len: u32,
    width: u32,
    // Shared expert: 0 absent, 1 plain, 2 gated.
    kind: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> h: array<f32>;
@group(0) @binding(1) var<storage, read> moe: array<f32>;
@group(0) @binding(2) var<storage, read> shared_part: array<f32>;
@group(0) @binding(3) var<storage, read> gate: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let i = folded(place) * THREADS + place.thread;
    if i >= params.len {
        return;
    }
    var value = h[i] + moe[i];
    if params.kind == 1u {
        value += shared_part[i];
    } else if params.kind == 2u {
        value += sigmoid(gate[i / params.width]) * shared_part[i];
    }
    y[i] = value;
}
