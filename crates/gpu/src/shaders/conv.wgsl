// y[t, c] = silu(sum_j w[c, j] [window, x][t + j, c]) over one sequence.
struct Params {
    tokens: u32,
    first_row: u32,
    channels: u32,
    kernel: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
// The last kernel - 1 inputs, oldest first.
@group(0) @binding(2) var<storage, read> window: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let i = folded(place) * THREADS + place.thread;
    let token = i / params.channels;
    if token >= params.tokens {
        return;
    }
    let channel = i % params.channels;
    let before = params.kernel - 1u;
    var sum = 0.0;
    for (var j = 0u; j < params.kernel; j++) {
        var value = 0.0;
        if token + j < before {
            value = window[(token + j) * params.channels + channel];
        } else {
            value = x[(params.first_row + token + j - before) * params.channels + channel];
        }
        sum += w[channel * params.kernel + j] * value;
    }
    y[(params.first_row + token) * params.channels + channel] = silu(sum);
}
