// The heads of spans of one token and their attention, as they leave their projections: a query head per workgroup, which is normalised and turns by
// the angles of the token's position, as does the key that comes in; the new key and value go into the slabs, from the first query head that shares them.
//
// With SPLIT, positions of a single span are shared by up to four workgroups, and the product behind puts together what they have: the values of each
// split for all heads, not yet divided by their sums, and behind those of four splits, for every head the largest scores of its splits and their sums.
struct Params {
    // Query heads, key heads.
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
    // Fours of words of a head in the slabs.
    key_fours: u32,
    value_stride: u32,
    value_fours: u32,
    // Spans from this one on, of which longer ones are not taken.
    first_span: u32,
    // Where the tables of all spans begin, and words from one to the next.
    table: u32,
    table_stride: u32,
    // 0 for none.
    window: u32,
    pairs: u32,
    // Where this embedding's angles begin.
    first_angle: u32,
    // Whether pairs are (2i, 2i + 1), not (i, i + pairs).
    interleaved: u32,
    norm_values: u32,
    // Whether queries are followed by gates.
    gated: u32,
    eps: f32,
    scale: f32,
    // 0 for none.
    soft_cap: f32,
    // Positions of a workgroup.
    part_len: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> q_norm: array<f32>;
@group(0) @binding(2) var<storage, read> k_norm: array<f32>;
@group(0) @binding(3) var<storage, read> steps: array<u32>;
@group(0) @binding(4) var<storage, read_write> keys: array<Four>;
@group(0) @binding(5) var<storage, read_write> values: array<Four>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

// The query, the key and the value have a quarter of the threads each.
const SPAN: u32 = THREADS / 4u;
const WIDEST: u32 = SPAN * EACH;
const HEADS: u32 = 3u;
// Pairs of neighbouring channels of a thread.
const TWOS: u32 = (EACH + 1u) / 2u;

// The token's own position.
var<private> own_position: u32;

fn key_words(at: u32) -> Four {
    return keys[at];
}

fn value_words(at: u32) -> Four {
    return values[at];
}

// What is behind the last position is never seen, but must be numbers.
fn key_at(loaded: vec4<u32>, four: u32, position: u32) -> vec4<u32> {
    return select(loaded, new_key[four], position >= own_position);
}

fn value_at(loaded: vec4<u32>, four: u32, position: u32) -> vec4<u32> {
    return select(loaded, new_value[four], position >= own_position);
}

// Channels `c` and the next of what a thread has turned.
fn keep(is_query: bool, is_value: bool, c: u32, two: vec2<f32>) {
    if is_query {
        queries[c / 4u][c % 4u] = params.scale * two.x;
        queries[c / 4u][c % 4u + 1u] = params.scale * two.y;
    } else {
        keep_two(is_value, c, two);
    }
}

// The first or the second quads of the token that is row `row` of the batch.
fn write(k: u32, query_head: u32, row: u32, place: Place) {
    let total = params.heads * params.value_width;
    let split = place.workgroup.y;
    // With splits, there is one row.
    let first = select(row, split, SPLIT == 1u) * total + query_head * params.value_width;
    let sum = sum_of(0u);
    for (var i = place.thread; i < RESULTS; i += THREADS) {
        let channel = channel_of(i, k);
        if channel < params.value_width {
            var value = published_result(0u, i);
            if SPLIT == 0u {
                value /= sum;
            }
            if params.gated != 0u {
                value *= sigmoid(x[ready(row * params.row_stride + query_head * params.stride + params.width + channel)]);
            }
            y[first + channel] = value;
        }
    }
    if SPLIT == 1u && k == 0u && place.thread == 0u {
        y[4u * total + 8u * query_head + split] = largest_of(0u);
        y[4u * total + 8u * query_head + 4u + split] = sum;
    }
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let index = team_of(place) * LANES + lane_of(place);
    let part = index / SPAN;
    let own = index % SPAN;
    let query_head = place.workgroup.x;
    let group = params.heads / params.key_heads;
    let head = query_head / group;
    let is_query = part == 0u;
    let is_value = part == 2u;
    let width = select(params.width, params.value_width, is_value);
    let number = params.first_span + place.workgroup.z;
    let span = span_of(number);
    blocks = blocks_of(params.table + number * params.table_stride);
    own_position = span.position;
    let first = parts_begin(span) + place.workgroup.y * params.part_len;
    let end = min(span.position + 1u, first + params.part_len);
    if span.len != 1u {
        announce(place);
        return;
    }
    let begin = span.row * params.row_stride + select(
        select(params.k_at + head * params.width, params.v_at + head * params.value_width, is_value),
        query_head * params.stride,
        is_query,
    );
    // What does not come from the kernel before is asked for first.
    var raw: array<f32, EACH>;
    var norms: array<vec2<f32>, EACH>;
    for (var i = 0u; i < EACH; i++) {
        let c = min(i * SPAN + own, params.width - 1u);
        norms[i] = vec2(q_norm[c], k_norm[c]);
    }
    var turns: array<vec4<f32>, TWOS>;
    let first_angle = params.first_angle + span.row * params.pairs;
    for (var i = 0u; i < TWOS; i++) {
        let c = 2u * (i * SPAN + own);
        turns[i] = vec4(angle_at(first_angle + pair_of(c)), angle_at(first_angle + pair_of(c + 1u)));
    }
    load_key(min(first + team_of(place), end - 1u), head, place);
    wait_for_inputs(place);
    for (var i = 0u; i < EACH; i++) {
        raw[i] = x[ready(begin + min(i * SPAN + own, width - 1u))];
    }
    var squares = vec2(0.0);
    for (var i = 0u; i < EACH; i++) {
        squares += select(vec2(0.0), squares_of(raw[i]), i * SPAN + own < width);
    }
    publish_sum(squares, place);
    workgroupBarrier();
    let inverse = inverse_of(published_part(part, 4u, place), width, params.eps);
    if part < 3u {
        for (var i = 0u; i < EACH; i++) {
            let c = i * SPAN + own;
            let norm = select(select(norms[i].y, norms[i].x, is_query), 1.0, is_value);
            let value = select(raw[i] * inverse * norm, raw[i], is_value && params.norm_values == 0u);
            head_values[part * WIDEST + c] = select(0.0, value, c < width);
        }
    }
    workgroupBarrier();
    var twos: array<vec2<f32>, TWOS>;
    for (var i = 0u; i < TWOS; i++) {
        let c = 2u * (i * SPAN + own);
        if part < 3u && c < WIDEST {
            let base = part * WIDEST;
            let plain = vec2(head_values[base + c], head_values[base + c + 1u]);
            let both = vec2(turned(base, c, turns[i].xy), turned(base, c + 1u, turns[i].zw));
            let two = select(both, plain, is_value);
            if TOGETHER {
                twos[i] = two;
            } else {
                keep(is_query, is_value, c, two);
            }
        }
    }
    if TOGETHER {
        // They take the place of what they were made of.
        workgroupBarrier();
        for (var i = 0u; i < TWOS; i++) {
            let c = 2u * (i * SPAN + own);
            if part < 3u && c < WIDEST {
                keep(is_query, is_value, c, twos[i]);
            }
        }
    }
    workgroupBarrier();
    keep_rows(place);
    attend(first, end, head, place);
    workgroupBarrier();
    publish_quad(0u, first_quads[0], place);
    workgroupBarrier();
    write(0u, query_head, span.row, place);
    if QUADS == 2u {
        workgroupBarrier();
        publish_quad(0u, second_quads[0], place);
        workgroupBarrier();
        write(1u, query_head, span.row, place);
    }
    if query_head % group == 0u && end > span.position {
        let row = head_row(span.position, head);
        let key_len = row_fours(params.key_fours);
        if place.thread < key_len {
            keys[row * key_len + place.thread] = kept_key(place.thread, params.key_fours);
        }
        let value_len = row_fours(params.value_fours);
        if place.thread < value_len {
            values[row * value_len + place.thread] = kept_value(place.thread, params.value_fours);
        }
    }
    announce(place);
}
