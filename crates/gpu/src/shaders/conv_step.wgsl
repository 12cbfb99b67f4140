// conv and conv_window at once, for few tokens: a thread has one channel of a span, and all its tokens.
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> windows: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let channel = place.workgroup.x * THREADS + place.thread;
    let span = span_of(params.first_span + place.workgroup.y);
    if channel >= params.channels || !is_taken(span) {
        return;
    }
    for (var token = 0u; token < span.len; token++) {
        var sum = 0.0;
        for (var j = 0u; j < params.kernel; j++) {
            sum += weight[channel * params.kernel + j] * input(span, token + j, channel);
        }
        y[(span.row + token) * params.channels + channel] = silu(sum);
    }
    // Each place is read before it is written: what moves there lies further on, or in the other window.
    let next = window_at(span.state, span.position + span.len);
    for (var j = 0u; j + 1u < params.kernel; j++) {
        windows[next + j * params.channels + channel] = input(span, j + span.len, channel);
    }
}
