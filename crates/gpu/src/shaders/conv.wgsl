// y[t, c] = silu(sum_j weight[c, j] [window, x][t + j, c]) over one sequence.
@group(0) @binding(1) var<storage, read> weight: array<f32>;
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
    var sum = 0.0;
    for (var j = 0u; j < params.kernel; j++) {
        sum += weight[channel * params.kernel + j] * input(token + j, channel);
    }
    y[(params.first_row + token) * params.channels + channel] = silu(sum);
}
