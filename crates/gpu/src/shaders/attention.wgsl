// Softmax-weighted sums of values over positions of spans, for ROWS query rows that share a key head: the heads of its
// group, of one token or of several. Where workgroups share the positions of a span in parts, each writes what it has, and
// attention_merge puts them together.
//
// A workgroup goes through the positions THREADS at a time: first a thread is a position, and has its score for every
// row; then a thread is a word of value channels, and adds the values of all these positions.
struct Params {
    // Spans from `first_span` on, of which those are taken that have from `shortest` to `longest` tokens; rows of the batch
    // from the first of them on.
    first_span: u32,
    shortest: u32,
    longest: u32,
    first_row: u32,
    rows: u32,
    // Query heads, key heads.
    heads: u32,
    key_heads: u32,
    // A query is [q | q_more].
    width: u32,
    width_more: u32,
    // Words of a head in the slabs of keys and values, of its value channels; value channels.
    key_words: u32,
    value_stride: u32,
    value_words: u32,
    value_width: u32,
    // Where the tables of all spans begin, and words from one to the next.
    table: u32,
    table_stride: u32,
    // 0 for none.
    window: u32,
    scale: f32,
    // 0 for none.
    soft_cap: f32,
    // Most parts of a span, and positions of a part.
    parts: u32,
    part_len: u32,
    // Workgroups that share the value channels of a part.
    chunks: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> q_more: array<f32>;
@group(0) @binding(2) var<storage, read> keys: array<u32>;
@group(0) @binding(3) var<storage, read> values: array<u32>;
// [row][head][value channel], or, with parts, [part][row][head][max, sum, value channels].
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read> steps: array<u32>;

// Words of the value channels that a workgroup takes: THREADS * WORDS.
const CHANNELS: u32 = WORDS * WORD_VALUES;
// Positions whose values are loaded at once.
const AHEAD: u32 = 8u;
// Threads that look for the largest score of a row.
const LANES: u32 = THREADS / ROWS;

var<workgroup> queries: array<vec4<f32>, QUERY_QUADS>;
var<workgroup> weights: array<f32, ROWS * THREADS>;
var<workgroup> lane_values: array<f32, THREADS>;
var<workgroup> row_max: array<f32, ROWS>;
var<workgroup> row_keep: array<f32, ROWS>;
var<workgroup> row_sum: array<f32, ROWS>;

fn query(row: u32, channel: u32) -> f32 {
    if channel < params.width {
        return q[row * params.width + channel];
    }
    if channel < params.width + params.width_more {
        return q_more[row * params.width_more + channel - params.width];
    }
    return 0.0;
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let thread = place.thread;
    let group = params.heads / params.key_heads;
    let head = place.workgroup.y;
    let chunk = place.workgroup.z % params.chunks;
    let part = place.workgroup.z / params.chunks % params.parts;
    let number = params.first_span + place.workgroup.z / params.chunks / params.parts;
    let span = span_of(number);
    let first = place.workgroup.x * ROWS;
    let count = span.len * group;
    let taken = span.len >= params.shortest && span.len <= params.longest;
    if !taken || first >= count || part >= parts_of(span) {
        return;
    }
    let blocks = blocks_of(params.table + number * params.table_stride);
    // Rows beyond the last repeat it, and are not written.
    var positions: array<u32, ROWS>;
    var rows: array<u32, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        let n = min(first + r, count - 1u);
        positions[r] = span.position + n / group;
        rows[r] = (span.row + n / group) * params.heads + head * group + n % group;
    }
    let quads = (params.width + params.width_more + 3u) / 4u;
    for (var i = thread; i < ROWS * quads; i += THREADS) {
        let n = min(first + i / quads, count - 1u);
        let row = (span.row + n / group) * params.heads + head * group + n % group;
        let c = i % quads * 4u;
        queries[i] = params.scale * vec4(query(row, c), query(row, c + 1u), query(row, c + 2u), query(row, c + 3u));
    }
    if thread < ROWS {
        row_max[thread] = LOWEST;
    }
    var sums: array<f32, ROWS>;
    var results: array<f32, ROWS * CHANNELS>;
    for (var r = 0u; r < ROWS; r++) {
        sums[r] = 0.0;
    }
    for (var i = 0u; i < ROWS * CHANNELS; i++) {
        results[i] = 0.0;
    }
    let part_begin = parts_begin(span) + part * params.part_len;
    let range = vec2(
        max(first_seen(positions[0]), part_begin),
        min(positions[ROWS - 1u] + 1u, part_begin + params.part_len),
    );
    workgroupBarrier();

    for (var start = range.x; start < range.y; start += THREADS) {
        // Scores.
        let position = start + thread;
        var scores: array<f32, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            scores[r] = 0.0;
        }
        if position < range.y {
            let row = place_in(blocks, position) * params.key_heads + head;
            // Four quads at once: their loads do not wait for each other.
            for (var c = 0u; c < quads; c += 4u) {
                var four: array<vec4<f32>, 4>;
                for (var i = 0u; i < 4u; i++) {
                    four[i] = key_quad(row, min(c + i, quads - 1u));
                }
                for (var i = 0u; i < min(4u, quads - c); i++) {
                    for (var r = 0u; r < ROWS; r++) {
                        scores[r] += dot(queries[r * quads + c + i], four[i]);
                    }
                }
            }
        }
        for (var r = 0u; r < ROWS; r++) {
            if params.soft_cap != 0.0 {
                scores[r] = params.soft_cap * bounded_tanh(scores[r] / params.soft_cap);
            }
            if position >= range.y || position < first_seen(positions[r]) || position > positions[r] {
                scores[r] = LOWEST;
            }
            weights[r * THREADS + thread] = scores[r];
        }
        workgroupBarrier();
        // The largest of each row, first over a lane's share, then over the lanes.
        let lane_row = thread / LANES;
        var largest = LOWEST;
        for (var i = thread % LANES; i < THREADS; i += LANES) {
            largest = max(largest, weights[lane_row * THREADS + i]);
        }
        lane_values[thread] = largest;
        workgroupBarrier();
        if thread < ROWS {
            var now = row_max[thread];
            for (var i = 0u; i < LANES; i++) {
                now = max(now, lane_values[thread * LANES + i]);
            }
            row_keep[thread] = exp(row_max[thread] - now);
            row_max[thread] = now;
        }
        workgroupBarrier();
        // Weights.
        for (var r = 0u; r < ROWS; r++) {
            let weight = select(exp(scores[r] - row_max[r]), 0.0, scores[r] == LOWEST);
            weights[r * THREADS + thread] = weight;
            sums[r] = sums[r] * row_keep[r] + weight;
            for (var c = 0u; c < CHANNELS; c++) {
                results[r * CHANNELS + c] *= row_keep[r];
            }
        }
        workgroupBarrier();
        // Values, several positions at a time so that their loads do not wait for each other. Positions beyond the last
        // repeat it with a weight of 0.
        let n = min(THREADS, range.y - start);
        for (var w = 0u; w < WORDS; w++) {
            let word = (chunk * WORDS + w) * THREADS + thread;
            if word < params.value_words {
                for (var j = 0u; j < n; j += AHEAD) {
                    var pairs: array<vec2<f32>, AHEAD>;
                    for (var i = 0u; i < AHEAD; i++) {
                        let slab_row = place_in(blocks, start + min(j + i, n - 1u));
                        pairs[i] = value_pair(slab_row * params.key_heads + head, word);
                    }
                    for (var i = 0u; i < AHEAD; i++) {
                        for (var r = 0u; r < ROWS; r++) {
                            let weight = select(0.0, weights[r * THREADS + min(j + i, THREADS - 1u)], j + i < n);
                            results[r * CHANNELS + w * WORD_VALUES] += weight * pairs[i].x;
                            if WORD_VALUES == 2u {
                                results[r * CHANNELS + w * WORD_VALUES + 1u] += weight * pairs[i].y;
                            }
                        }
                    }
                }
            }
        }
        workgroupBarrier();
    }

    // The sums of weights over all threads.
    for (var r = 0u; r < ROWS; r++) {
        weights[r * THREADS + thread] = sums[r];
    }
    workgroupBarrier();
    var own_sum = 0.0;
    for (var i = thread % LANES; i < THREADS; i += LANES) {
        own_sum += weights[thread / LANES * THREADS + i];
    }
    lane_values[thread] = own_sum;
    workgroupBarrier();
    if thread < ROWS {
        var sum = 0.0;
        for (var i = 0u; i < LANES; i++) {
            sum += lane_values[thread * LANES + i];
        }
        row_sum[thread] = sum;
    }
    workgroupBarrier();

    let several = params.parts > 1u;
    let stride = params.value_width + select(0u, 2u, several);
    for (var r = 0u; r < ROWS; r++) {
        if first + r >= count {
            break;
        }
        // Partial results count the rows from the first span on.
        let before = part * params.rows * params.heads - params.first_row * params.heads;
        let at = (rows[r] + select(0u, before, several)) * stride;
        if several && thread == 0u && chunk == 0u {
            y[at] = row_max[r];
            y[at + 1u] = row_sum[r];
        }
        let factor = select(1.0 / row_sum[r], 1.0, several);
        for (var w = 0u; w < WORDS; w++) {
            let channel = ((chunk * WORDS + w) * THREADS + thread) * WORD_VALUES;
            for (var k = 0u; k < WORD_VALUES; k++) {
                if channel + k < params.value_width {
                    y[at + select(0u, 2u, several) + channel + k] = factor * results[r * CHANNELS + w * WORD_VALUES + k];
                }
            }
        }
    }
}
