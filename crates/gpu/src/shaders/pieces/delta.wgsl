// What the recurrence of a Gated DeltaNet takes: queries, keys and values of all tokens side by side, of the spans from
// `first_span` on those that have from `shortest` to `longest` tokens. `state` is S[value_head][row][column] of each
// state row.
struct Params {
    first_span: u32,
    shortest: u32,
    longest: u32,
    // Row of the batch where the first such span begins.
    first_row: u32,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    // Values from row to row of the gates.
    gate_stride: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> qkv: array<f32>;
@group(0) @binding(1) var<storage, read> steps: array<u32>;

fn is_taken(span: SpanOf) -> bool {
    return span.len >= params.shortest && span.len <= params.longest;
}

// Where a row of a sequence's matrix of a head begins.
fn matrix_row(span: SpanOf, head: u32, row: u32) -> u32 {
    return ((span.state * params.value_heads + head) * params.value_dim + row) * params.key_dim;
}
