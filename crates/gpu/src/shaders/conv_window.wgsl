// A sequence's next window has the last kernel - 1 of [window, x]. A thread has one channel of a span, and reads each
// place before it is written.
@group(0) @binding(2) var<storage, read_write> windows: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let channel = place.workgroup.x * THREADS + place.thread;
    let span = span_of(params.first_span + place.workgroup.y);
    if channel >= params.channels || !is_taken(span) {
        return;
    }
    let next = window_at(span.state, span.position + span.len);
    for (var j = 0u; j + 1u < params.kernel; j++) {
        windows[next + j * params.channels + channel] = input(span, j + span.len, channel);
    }
}
