// conv and conv_window at once, for few tokens: a thread has one channel and all of them.
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
@group(0) @binding(2) var<storage, read_write> window: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

// Input `i` of [window, x].
fn input(i: u32, channel: u32) -> f32 {
    let before = params.kernel - 1u;
    if i < before {
        return window[i * params.channels + channel];
    }
    return x[(params.first_row + i - before) * params.channels + channel];
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let channel = folded(place) * THREADS + place.thread;
    if channel >= params.channels {
        return;
    }
    for (var token = 0u; token < params.tokens; token++) {
        var sum = 0.0;
        for (var j = 0u; j < params.kernel; j++) {
            sum += w[channel * params.kernel + j] * input(token + j, channel);
        }
        y[(params.first_row + token) * params.channels + channel] = silu(sum);
    }
    // Each place is read before it is written: what moves there lies further on.
    for (var j = 0u; j + 1u < params.kernel; j++) {
        window[j * params.channels + channel] = input(j + params.tokens, channel);
    }
}
