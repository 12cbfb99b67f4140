// What a step's sequences are, and where their keys and values lie. Kernels bind `steps`:
// [first row, len, position, state row] of each span; the span of each row of the batch; then, for each group of layers and each span, a
// table: how many blocks have been passed, then the blocks that are held. Behind all of them there are angles.
const BLOCK: u32 = 64u;

struct SpanOf {
    // First row of the batch, and how many.
    row: u32,
    len: u32,
    // Of the first row in its sequence.
    position: u32,
    state: u32,
}

fn span_of(i: u32) -> SpanOf {
    let at = 4u * i;
    return SpanOf(steps[at], steps[at + 1u], steps[at + 2u], steps[at + 3u]);
}

// The span of a row of a batch that has so many spans.
fn row_span(row: u32, spans: u32) -> u32 {
    return steps[4u * spans + row];
}

// Where block 0 of a span would be in its table: block `i` is at `i` behind that.
fn blocks_of(table: u32) -> u32 {
    return table + 1u - steps[table];
}

// The row of a slab in which a position lies, of a span whose blocks are at `blocks`.
fn place_in(blocks: u32, position: u32) -> u32 {
    return steps[blocks + position / BLOCK] * BLOCK + position % BLOCK;
}

// Cosine and sine, factor included.
fn angle_at(i: u32) -> vec2<f32> {
    return vec2(bitcast<f32>(steps[2u * i]), bitcast<f32>(steps[2u * i + 1u]));
}
