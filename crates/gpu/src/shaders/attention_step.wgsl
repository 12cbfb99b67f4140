// Attention of one token over a range of positions, for ROWS query heads that share a key head. With several splits, each writes what it
// has to `partial`, and attention_merge puts them together.
//
// A workgroup goes through CHUNK positions at a time. First LANES threads share a position: each has every LANES-th four words of its key,
// and its part of the score for every row. Then a thread is a row and four words of value channels, and adds the values of all these positions.
struct Params {
    // Query heads, key heads.
    heads: u32,
    key_heads: u32,
    // A query is [q | q_more].
    width: u32,
    width_more: u32,
    // Fours of words of a head in the caches of keys and values, of its value channels; value channels.
    key_fours: u32,
    value_stride: u32,
    value_fours: u32,
    value_width: u32,
    slots: u32,
    // Positions: the first that is seen, and one past the last.
    begin: u32,
    end: u32,
    scale: f32,
    // 0 for none.
    soft_cap: f32,
    splits: u32,
    // Positions of a split.
    split_len: u32,
    // Workgroups that share the value channels of a split.
    chunks: u32,
    // Row of the batch that the token is.
    token: u32,
    // Columns from one head's gate to the next, and to the first; 0 for no gates. Only where there is one split.
    gate_stride: u32,
    gate_at: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> q_more: array<f32>;
@group(0) @binding(2) var<storage, read> keys: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> values: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> gates: array<f32>;
// [head][value channel], or, with splits, [split][head][max, sum, value channels].
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

const CHUNK: u32 = THREADS / LANES;
// Values of four words, and quads of them.
const FOUR: u32 = 4u * WORD_VALUES;
const QUADS: u32 = WORD_VALUES;
// Positions whose values are loaded at once.
const AHEAD: u32 = 8u;
// Fours of a row that a workgroup has.
const FOURS: u32 = THREADS / ROWS;

var<workgroup> queries: array<vec4<f32>, QUERY_QUADS>;
// [position][row]
var<workgroup> scores: array<f32, ROWS * CHUNK>;
var<workgroup> weights: array<f32, ROWS * CHUNK>;
var<workgroup> row_max: array<f32, ROWS>;
var<workgroup> row_next: array<f32, ROWS>;
var<workgroup> row_keep: array<f32, ROWS>;

fn query(row: u32, channel: u32) -> f32 {
    if channel < params.width {
        return q[row * params.width + channel];
    }
    if channel < params.width + params.width_more {
        return q_more[row * params.width_more + channel - params.width];
    }
    return 0.0;
}

// Where a position's values are; positions beyond the last weigh nothing.
fn value_at(position: u32, end: u32, head: u32) -> u32 {
    return (min(position, end - 1u) % params.slots * params.key_heads + head) * params.value_stride;
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let lane = lane_of(place);
    let team = team_of(place);
    let group = params.heads / params.key_heads;
    let head = place.workgroup.y;
    let split = place.workgroup.z / params.chunks;
    let chunk = place.workgroup.z % params.chunks;
    let first = place.workgroup.x * ROWS;
    let quads = params.key_fours * QUADS;
    for (var i = place.thread; i < ROWS * quads; i += THREADS) {
        // Rows beyond the last repeat it, and are not written.
        let row = params.token * params.heads + head * group + min(first + i / quads, group - 1u);
        let c = i % quads * 4u;
        queries[i] = params.scale * vec4(query(row, c), query(row, c + 1u), query(row, c + 2u), query(row, c + 3u));
    }
    if place.thread < ROWS {
        row_max[place.thread] = LOWEST;
    }
    // What this thread adds up: for one row, its sum of weights and four words of channels.
    let row = place.thread % ROWS;
    let value_four = min(chunk * FOURS + place.thread / ROWS, params.value_fours - 1u);
    var sum = 0.0;
    var first_quad = vec4(0.0);
    var second_quad = vec4(0.0);
    let begin = max(params.begin, split * params.split_len);
    let end = min(params.end, (split + 1u) * params.split_len);
    workgroupBarrier();

    for (var start = begin; start < end; start += CHUNK) {
        let position = min(start + team, end - 1u);
        let key = (position % params.slots * params.key_heads + head) * params.key_fours;
        // The first values are asked for before the scores are known.
        var words: array<vec4<u32>, AHEAD>;
        for (var i = 0u; i < AHEAD; i++) {
            words[i] = values[value_at(start + i, end, head) + value_four];
        }
        var parts: array<f32, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            parts[r] = 0.0;
        }
        for (var i = lane; i < params.key_fours; i += LANES) {
            let four = keys[key + i];
            let quad = quad_of(four, 0u);
            for (var r = 0u; r < ROWS; r++) {
                parts[r] += dot(queries[r * quads + i * QUADS], quad);
            }
            if QUADS == 2u {
                let quad = quad_of(four, 1u);
                for (var r = 0u; r < ROWS; r++) {
                    parts[r] += dot(queries[r * quads + i * QUADS + 1u], quad);
                }
            }
        }
        for (var r = 0u; r < ROWS; r++) {
            var score = team_sum(parts[r], place);
            if params.soft_cap > 0.0 {
                score = params.soft_cap * bounded_tanh(score / params.soft_cap);
            }
            if lane == r % LANES {
                scores[team * ROWS + r] = select(LOWEST, score, start + team < end);
            }
        }
        workgroupBarrier();
        if place.thread < ROWS * CHUNK {
            let r = place.thread / CHUNK;
            let n = place.thread % CHUNK;
            var largest = row_max[r];
            for (var i = 0u; i < CHUNK; i++) {
                largest = max(largest, scores[i * ROWS + r]);
            }
            weights[n * ROWS + r] = select(0.0, exp(scores[n * ROWS + r] - largest), start + n < end);
            if n == 0u {
                row_next[r] = largest;
                row_keep[r] = exp(row_max[r] - largest);
            }
        }
        workgroupBarrier();
        if place.thread < ROWS {
            row_max[place.thread] = row_next[place.thread];
        }
        let keep = row_keep[row];
        sum *= keep;
        first_quad *= keep;
        second_quad *= keep;
        for (var n = 0u; n < CHUNK; n += AHEAD) {
            for (var i = 0u; i < AHEAD; i++) {
                let weight = weights[(n + i) * ROWS + row];
                let four = words[i];
                if n + AHEAD < CHUNK {
                    words[i] = values[value_at(start + n + AHEAD + i, end, head) + value_four];
                }
                sum += weight;
                first_quad += weight * quad_of(four, 0u);
                if QUADS == 2u {
                    second_quad += weight * quad_of(four, 1u);
                }
            }
        }
        workgroupBarrier();
    }

    // Rows beyond the last, and fours beyond the last, are somebody else's.
    if first + row >= group || chunk * FOURS + place.thread / ROWS >= params.value_fours {
        return;
    }
    let several = params.splits > 1u;
    let stride = params.value_width + select(0u, 2u, several);
    let query_head = head * group + first + row;
    let at = (select(params.token, split, several) * params.heads + query_head) * stride;
    if several && value_four == 0u {
        y[at] = row_max[row];
        y[at + 1u] = sum;
    }
    let factor = select(1.0 / sum, 1.0, several);
    for (var j = 0u; j < FOUR; j++) {
        let channel = value_four * FOUR + j;
        if channel < params.value_width {
            var value = factor * select(first_quad[j & 3u], second_quad[j & 3u], j >= 4u);
            if params.gate_stride > 0u && !several {
                value *= sigmoid(gates[query_head * params.gate_stride + params.gate_at + channel]);
            }
            y[at + select(0u, 2u, several) + channel] = value;
        }
    }
}
