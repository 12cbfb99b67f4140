// What the kernels of a causal convolution take. The `window` of the last kernel - 1 inputs, oldest first, is theirs to declare.
struct Params {
    tokens: u32,
    first_row: u32,
    channels: u32,
    kernel: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;

// Input `i` of [window, x].
fn input(i: u32, channel: u32) -> f32 {
    let before = params.kernel - 1u;
    if i < before {
        return window[i * params.channels + channel];
    }
    return x[(params.first_row + i - before) * params.channels + channel];
}
