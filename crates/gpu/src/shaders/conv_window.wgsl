// The window becomes the last kernel - 1 of [window, x]. A thread has one channel, and reads each place before it is written.
struct Params {
    tokens: u32,
    first_row: u32,
    channels: u32,
    kernel: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> window: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let channel = folded(place) * THREADS + place.thread;
    if channel >= params.channels {
        return;
    }
    let before = params.kernel - 1u;
    for (var j = 0u; j < before; j++) {
        let source = j + params.tokens;
        var value = 0.0;
        if source < before {
            value = window[source * params.channels + channel];
        } else {
            value = x[(params.first_row + source - before) * params.channels + channel];
        }
        window[j * params.channels + channel] = value;
    }
}
