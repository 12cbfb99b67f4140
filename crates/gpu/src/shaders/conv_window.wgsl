// The window becomes the last kernel - 1 of [window, x]. A thread has one channel, and reads each place before it is written.
@group(0) @binding(1) var<storage, read_write> window: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let channel = folded(place) * THREADS + place.thread;
    if channel >= params.channels {
        return;
    }
    for (var j = 0u; j + 1u < params.kernel; j++) {
        window[j * params.channels + channel] = input(j + params.tokens, channel);
    }
}
