// conv and conv_window at once, for few tokens: a thread has one channel and all of them.
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> window: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let channel = folded(place) * THREADS + place.thread;
    if channel >= params.channels {
        return;
    }
    for (var token = 0u; token < params.tokens; token++) {
        var sum = 0.0;
        for (var j = 0u; j < params.kernel; j++) {
            sum += weight[channel * params.kernel + j] * input(token + j, channel);
        }
        y[(params.first_row + token) * params.channels + channel] = silu(sum);
    }
    // Each place is read before it is written: what moves there lies further on.
    for (var j = 0u; j + 1u < params.kernel; j++) {
        window[j * params.channels + channel] = input(j + params.tokens, channel);
    }
}
