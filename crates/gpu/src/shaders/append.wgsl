// Writes rows of [a | b] where their tokens have their places. A thread writes one word.
struct Params {
    rows: u32,
    spans: u32,
    heads: u32,
    // Channels of a head in a and in b, and words of a head in the slab.
    width_a: u32,
    width_b: u32,
    words: u32,
    // Where the spans' tables begin, and words from one to the next.
    table: u32,
    table_stride: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read> steps: array<u32>;
@group(0) @binding(3) var<storage, read_write> slab: array<u32>;

fn stored_value(row: u32, channel: u32) -> f32 {
    if channel < params.width_a {
        return a[row * params.width_a + channel];
    }
    if channel < params.width_a + params.width_b {
        return b[row * params.width_b + channel - params.width_a];
    }
    return 0.0;
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let i = folded(place) * THREADS + place.thread;
    let token_words = params.heads * params.words;
    let row = i / token_words;
    if row >= params.rows {
        return;
    }
    let number = row_span(row, params.spans);
    let span = span_of(number);
    let blocks = blocks_of(params.table + number * params.table_stride);
    let slab_row = place_in(blocks, span.position + row - span.row);
    let head = i % token_words / params.words;
    let width = params.width_a + params.width_b;
    slab[slab_row * token_words + i % token_words] = stored_word(row * params.heads + head, i % params.words, width);
}
