// What the kernels of a causal convolution take: the spans from `first_span` on that have from `shortest` to `longest`
// tokens. `windows` are theirs to declare: for each state row two windows of the last kernel - 1 inputs, oldest first,
// that of even positions and that of odd ones.
struct Params {
    // Of the batch.
    spans: u32,
    first_span: u32,
    shortest: u32,
    longest: u32,
    // Rows of the batch from the first such span on.
    first_row: u32,
    rows: u32,
    channels: u32,
    // Values from row to row of x.
    stride: u32,
    kernel: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> steps: array<u32>;

fn is_taken(span: SpanOf) -> bool {
    return span.len >= params.shortest && span.len <= params.longest;
}

// Where the window of a sequence of `position` tokens begins.
fn window_at(state: u32, position: u32) -> u32 {
    return (2u * state + position % 2u) * (params.kernel - 1u) * params.channels;
}

// Input `i` of a span's [window, x].
fn input(span: SpanOf, i: u32, channel: u32) -> f32 {
    let before = params.kernel - 1u;
    if i < before {
        return windows[window_at(span.state, span.position) + i * params.channels + channel];
    }
    return x[(span.row + i - before) * params.stride + channel];
}
