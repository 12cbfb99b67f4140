// Queries, keys and values of a step, as they leave their projection: queries and keys are normalised per head and turn by the angles of
// their token's position, keys and values go where the token has its place. One head of a token per workgroup: those of queries, of keys, of values.
struct Params {
    // Of the batch.
    rows: u32,
    spans: u32,
    // Heads of queries, and of keys.
    heads: u32,
    key_heads: u32,
    // Channels of a query or key, from one query to the next, from one row of x to the next, and of a value.
    width: u32,
    stride: u32,
    row_stride: u32,
    value_width: u32,
    // Where keys and values are behind the queries.
    k_at: u32,
    v_at: u32,
    // Words of a head in the slabs.
    key_words: u32,
    value_words: u32,
    // Where the spans' tables begin, and words from one to the next.
    table: u32,
    table_stride: u32,
    pairs: u32,
    // Where this embedding's angles begin.
    first_angle: u32,
    // Whether pairs are (2i, 2i + 1), not (i, i + pairs).
    interleaved: u32,
    norm_values: u32,
    eps: f32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> q_norm: array<f32>;
@group(0) @binding(2) var<storage, read> k_norm: array<f32>;
@group(0) @binding(3) var<storage, read> steps: array<u32>;
@group(0) @binding(4) var<storage, read_write> q: array<f32>;
@group(0) @binding(5) var<storage, read_write> keys: array<u32>;
@group(0) @binding(6) var<storage, read_write> values: array<u32>;

// Widest head.
const WIDEST: u32 = THREADS * EACH;
const HEADS: u32 = 1u;

var<workgroup> turned_values: array<f32, WIDEST>;

// Behind the head there are zeros, and no room for more than the widest.
fn stored_value(row: u32, c: u32) -> f32 {
    return select(0.0, turned_values[min(c, WIDEST - 1u)], c < WIDEST);
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let n = place.workgroup.x;
    let row = place.workgroup.y + place.workgroup.z * place.grid.y;
    if row >= params.rows {
        return;
    }
    let number = row_span(row, params.spans);
    let span = span_of(number);
    let is_query = n < params.heads;
    let is_value = n >= params.heads + params.key_heads;
    var head = n;
    var begin = n * params.stride;
    var width = params.width;
    if is_value {
        head = n - params.heads - params.key_heads;
        width = params.value_width;
        begin = params.v_at + head * width;
    } else if !is_query {
        head = n - params.heads;
        begin = params.k_at + head * width;
    }
    begin += row * params.row_stride;
    // Everything is asked for before anything is waited for.
    var own: array<f32, EACH>;
    var norms: array<vec2<f32>, EACH>;
    var turns: array<vec2<f32>, EACH>;
    for (var i = 0u; i < EACH; i++) {
        let c = i * THREADS + place.thread;
        own[i] = x[begin + min(c, width - 1u)];
        let at = min(c, params.width - 1u);
        norms[i] = vec2(q_norm[at], k_norm[at]);
        turns[i] = angle_at(params.first_angle + row * params.pairs + pair_of(c));
    }
    var squares = vec2(0.0);
    for (var i = 0u; i < EACH; i++) {
        squares += select(vec2(0.0), squares_of(own[i]), i * THREADS + place.thread < width);
    }
    let inverse = inverse_rms(squares, width, params.eps, place);
    for (var i = 0u; i < EACH; i++) {
        let c = i * THREADS + place.thread;
        let norm = select(select(norms[i].y, norms[i].x, is_query), 1.0, is_value);
        let value = select(own[i] * inverse * norm, own[i], is_value && params.norm_values == 0u);
        head_values[c] = select(0.0, value, c < width);
    }
    workgroupBarrier();
    if is_query {
        for (var i = 0u; i < EACH; i++) {
            let c = i * THREADS + place.thread;
            if c < width {
                q[(row * params.heads + head) * width + c] = turned(0u, c, turns[i]);
            }
        }
        return;
    }
    for (var i = 0u; i < EACH; i++) {
        let c = i * THREADS + place.thread;
        turned_values[c] = select(turned(0u, c, turns[i]), head_values[c], is_value);
    }
    workgroupBarrier();
    let words = select(params.key_words, params.value_words, is_value);
    let blocks = blocks_of(params.table + number * params.table_stride);
    let slab_row = place_in(blocks, span.position + row - span.row);
    for (var i = place.thread; i < words; i += THREADS) {
        let at = (slab_row * params.key_heads + head) * words + i;
        let word = stored_word(0u, i, width);
        if is_value {
            values[at] = word;
        } else {
            keys[at] = word;
        }
    }
}
