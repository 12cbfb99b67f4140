// y[t, c] = silu(sum_j weight[c, j] [window, x][t + j, c]) over each sequence.
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> windows: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let i = folded(place) * THREADS + place.thread;
    if i / params.channels >= params.rows {
        return;
    }
    let row = params.first_row + i / params.channels;
    let span = span_of(row_span(row, params.spans));
    if !is_taken(span) {
        return;
    }
    let channel = i % params.channels;
    var sum = 0.0;
    for (var j = 0u; j < params.kernel; j++) {
        sum += weight[channel * params.kernel + j] * input(span, row - span.row + j, channel);
    }
    y[row * params.channels + channel] = silu(sum);
}
