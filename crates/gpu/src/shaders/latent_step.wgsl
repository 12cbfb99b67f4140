// Queries and latents of a step, as they leave their projections: every query head's plain part and its part with a position, which turns, go
// apart; the latent is normalised and goes where its token has its place, together with the turned part of the key. One query head of a token per
// workgroup, and the latent in the last.
struct Params {
    // Of the batch.
    rows: u32,
    spans: u32,
    heads: u32,
    nope: u32,
    pe: u32,
    rank: u32,
    // Words of a token in the slab.
    key_words: u32,
    // Where the spans' tables begin, and words from one to the next.
    table: u32,
    table_stride: u32,
    // Where this embedding's angles begin.
    first_angle: u32,
    // Whether pairs are (2i, 2i + 1), not (i, i + pe / 2).
    interleaved: u32,
    eps: f32,
}
@group(1) @binding(0) var<uniform> params: Params;

// Per head [plain | with a position].
@group(0) @binding(0) var<storage, read> q: array<f32>;
// [latent | key with a position]
@group(0) @binding(1) var<storage, read> kv: array<f32>;
@group(0) @binding(2) var<storage, read> norm: array<f32>;
@group(0) @binding(3) var<storage, read> steps: array<u32>;
@group(0) @binding(4) var<storage, read_write> q_plain: array<f32>;
@group(0) @binding(5) var<storage, read_write> q_turned: array<f32>;
@group(0) @binding(6) var<storage, read_write> keys: array<u32>;

var<private> inverse: f32;

// Values of a row of kv.
fn latent_width() -> u32 {
    return params.rank + params.pe;
}

fn stored_value(row: u32, c: u32) -> f32 {
    if c < params.rank {
        return kv[row * latent_width() + c] * inverse * norm[c];
    }
    if c < latent_width() {
        return turned(false, row * latent_width() + params.rank, c - params.rank, row);
    }
    return 0.0;
}

fn channel(is_query: bool, start: u32, c: u32) -> f32 {
    if is_query {
        return q[start + c];
    }
    return kv[start + c];
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let head = place.workgroup.x;
    let row = place.workgroup.y + place.workgroup.z * place.grid.y;
    if row >= params.rows {
        return;
    }
    if head < params.heads {
        let query = row * params.heads + head;
        let start = query * (params.nope + params.pe);
        for (var c = place.thread; c < params.nope; c += THREADS) {
            q_plain[query * params.nope + c] = q[start + c];
        }
        for (var c = place.thread; c < params.pe; c += THREADS) {
            q_turned[query * params.pe + c] = turned(true, start + params.nope, c, row);
        }
        return;
    }
    var squares = vec2(0.0);
    for (var c = place.thread; c < params.rank; c += THREADS) {
        squares += squares_of(kv[row * latent_width() + c]);
    }
    inverse = inverse_rms(squares, params.rank, params.eps, place);
    let number = row_span(row, params.spans);
    let span = span_of(number);
    let blocks = blocks_of(params.table + number * params.table_stride);
    let slab_row = place_in(blocks, span.position + row - span.row);
    for (var i = place.thread; i < params.key_words; i += THREADS) {
        keys[slab_row * params.key_words + i] = stored_word(row, i, latent_width());
    }
}
