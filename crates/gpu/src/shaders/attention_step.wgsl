// Attention of spans of one token, for ROWS query heads that share a key head. Where workgroups share the positions of a span in parts, each writes
// what it has, and attention_merge puts them together.
struct Params {
    // Query heads, key heads.
    heads: u32,
    key_heads: u32,
    // A query is [q | q_more].
    width: u32,
    width_more: u32,
    // Fours of words of a head in the slabs of keys and values, of its value channels; value channels.
    key_fours: u32,
    value_stride: u32,
    value_fours: u32,
    value_width: u32,
    // 0 for none.
    window: u32,
    scale: f32,
    // 0 for none.
    soft_cap: f32,
    // Spans from this one on, of which longer ones are not taken.
    first_span: u32,
    spans: u32,
    // Where the tables of all spans begin, and words from one to the next.
    table: u32,
    table_stride: u32,
    // Most parts of a span, and positions of a part.
    parts: u32,
    part_len: u32,
    // Columns from one token's gates to the next one's, from one head's to the next, and to the first; 0 for no gates. Only where there is one part.
    gate_row: u32,
    gate_stride: u32,
    gate_at: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> q_more: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> keys: array<Four>;
@group(0) @binding(3) var<storage, read> values: array<Four>;
@group(0) @binding(4) var<storage, read> gates: array<f32>;
// [row][head][value channel], or, with parts, [part][span][head][max, sum, value channels].
@group(0) @binding(5) var<storage, read_write> y: array<f32>;
@group(0) @binding(6) var<storage, read> steps: array<u32>;

// Four channels of a query, which is [q | q_more].
fn query(row: u32, c: u32) -> vec4<f32> {
    let width = params.width / 4u;
    let more = params.width_more / 4u;
    let plain = q[row * width + min(c, width - 1u)];
    let behind = q_more[row * more + min(max(c, width) - width, max(more, 1u) - 1u)];
    return select(select(vec4(0.0), behind, c < width + more), plain, c < width);
}

// Quads of queries that a thread loads.
const QUERY_STEPS: u32 = (ROWS * LANES * KEY_STEPS * QUADS + THREADS - 1u) / THREADS;

fn key_words(at: u32) -> Four {
    return keys[at];
}

fn value_words(at: u32) -> Four {
    return values[at];
}

fn key_at(loaded: vec4<u32>, four: u32, position: u32) -> vec4<u32> {
    return loaded;
}

fn value_at(loaded: vec4<u32>, four: u32, position: u32) -> vec4<u32> {
    return loaded;
}

// The first or the second quads of rows from `first_row` on, of the token that is row `token` of the batch.
fn write(first_row: u32, k: u32, token: u32, place: Place) {
    let group = params.heads / params.key_heads;
    let several = params.parts > 1u;
    // Spans and their parts are counted in the same way.
    let number = place.workgroup.z / params.parts;
    let part = place.workgroup.z % params.parts;
    let stride = params.value_width + select(0u, 2u, several);
    for (var n = place.thread; n < AT_ONCE * RESULTS; n += THREADS) {
        let r = first_row + n / RESULTS;
        let i = n % RESULTS;
        let row = place.workgroup.x * ROWS + r;
        let query_head = place.workgroup.y * group + row;
        let at = (select(token, part * params.spans + number, several) * params.heads + query_head) * stride;
        let channel = channel_of(i, k);
        // Rows beyond the last, and channels beyond the last, are somebody else's.
        if row < group && channel < params.value_width {
            var value = published_result(r, i);
            let sum = sum_of(r);
            if several {
                y[at + 2u + channel] = value;
            } else {
                value /= sum;
                if params.gate_stride > 0u {
                    let gate = token * params.gate_row + query_head * params.gate_stride + params.gate_at;
                    value *= sigmoid(gates[gate + channel]);
                }
                y[at + channel] = value;
            }
            if several && channel == 0u {
                y[at] = largest_of(r);
                y[at + 1u] = sum;
            }
        }
    }
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let group = params.heads / params.key_heads;
    let head = place.workgroup.y;
    let number = params.first_span + place.workgroup.z / params.parts;
    let span = span_of(number);
    blocks = blocks_of(params.table + number * params.table_stride);
    let first = place.workgroup.x * ROWS;
    let begin = parts_begin(span) + place.workgroup.z % params.parts * params.part_len;
    let end = min(span.position + 1u, begin + params.part_len);
    if span.len != 1u || begin >= end {
        return;
    }
    load_key(min(begin + team_of(place), end - 1u), head, place);
    let quads = params.key_fours * QUADS;
    let count = ROWS * quads;
    var loaded: array<vec4<f32>, QUERY_STEPS>;
    for (var n = 0u; n < QUERY_STEPS; n++) {
        let i = min(n * THREADS + place.thread, count - 1u);
        // Rows beyond the last repeat it, and are not written.
        let row = span.row * params.heads + head * group + min(first + i / quads, group - 1u);
        loaded[n] = query(row, i % quads);
    }
    for (var n = 0u; n < QUERY_STEPS; n++) {
        if n * THREADS + place.thread < count {
            queries[n * THREADS + place.thread] = params.scale * loaded[n];
        }
    }
    workgroupBarrier();
    attend(begin, end, head, place);
    // repeat r < ROWS
    if #ru % AT_ONCE == 0u {
        workgroupBarrier();
    }
    publish_quad(#ru, first_quads[#ru], place);
    if #ru % AT_ONCE == AT_ONCE - 1u {
        workgroupBarrier();
        write(#ru + 1u - AT_ONCE, 0u, span.row, place);
    }
    // end repeat
    // repeat r < ROWS
    if QUADS == 2u {
        if #ru % AT_ONCE == 0u {
            workgroupBarrier();
        }
        publish_quad(#ru, second_quads[#ru], place);
        if #ru % AT_ONCE == AT_ONCE - 1u {
            workgroupBarrier();
            write(#ru + 1u - AT_ONCE, 1u, span.row, place);
        }
    }
    // end repeat
}
