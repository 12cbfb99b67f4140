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

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> q_more: array<vec4<f32>>;
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
// Quads of a query that a thread loads.
const QUERY_STEPS: u32 = (QUERY_QUADS / ROWS + THREADS - 1u) / THREADS;
// Fours of a row that a workgroup has.
const FOURS: u32 = THREADS / ROWS;

var<workgroup> queries: array<vec4<f32>, QUERY_QUADS>;
// [position][row]
var<workgroup> scores: array<f32, ROWS * CHUNK>;
var<workgroup> weights: array<f32, ROWS * CHUNK>;
var<workgroup> row_max: array<f32, ROWS>;
var<workgroup> row_next: array<f32, ROWS>;
var<workgroup> row_keep: array<f32, ROWS>;

// Four channels of a query, which is [q | q_more].
fn query(row: u32, c: u32) -> vec4<f32> {
    let width = params.width / 4u;
    let more = params.width_more / 4u;
    if c < width {
        return q[row * width + c];
    }
    return select(vec4(0.0), q_more[row * more + min(c - width, max(more, 1u) - 1u)], c < width + more);
}

fn slot_of(slot: u32) -> u32 {
    return select(slot, slot - params.slots, slot >= params.slots);
}

fn capped(score: f32) -> f32 {
    return params.soft_cap * bounded_tanh(score / params.soft_cap);
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
    // What this thread adds up: for one row, its sum of weights and four words of channels.
    let row = place.thread % ROWS;
    let value_four = min(chunk * FOURS + place.thread / ROWS, params.value_fours - 1u);
    var sum = 0.0;
    var first_quad = vec4(0.0);
    var second_quad = vec4(0.0);
    let begin = max(params.begin, split * params.split_len);
    let end = min(params.end, (split + 1u) * params.split_len);

    let key_stride = params.key_heads * params.key_fours;
    let value_stride = params.key_heads * params.value_stride;
    let value_first = head * params.value_stride + value_four;

    for (var start = begin; start < end; start += CHUNK) {
        // Slots of the positions, of which no more are seen than there are; positions beyond the last weigh nothing.
        let first_slot = start % params.slots;
        let last = end - 1u - start;
        // Keys and the first values are asked for before queries and scores are known.
        let key = slot_of(first_slot + min(team, last)) * key_stride + head * params.key_fours;
        var fours: array<vec4<u32>, KEY_STEPS>;
        for (var i = 0u; i < KEY_STEPS; i++) {
            fours[i] = keys[key + min(i * LANES + lane, params.key_fours - 1u)];
        }
        var words: array<vec4<u32>, AHEAD>;
        for (var i = 0u; i < AHEAD; i++) {
            words[i] = values[slot_of(first_slot + min(i, last)) * value_stride + value_first];
        }
        if start == begin {
            for (var n = 0u; n < QUERY_STEPS; n++) {
                let i = n * THREADS + place.thread;
                if i < quads {
                    for (var r = 0u; r < ROWS; r++) {
                        // Rows beyond the last repeat it, and are not written.
                        let row = params.token * params.heads + head * group + min(first + r, group - 1u);
                        queries[r * quads + i] = params.scale * query(row, i);
                    }
                }
            }
            if place.thread < ROWS {
                row_max[place.thread] = LOWEST;
            }
        }
        workgroupBarrier();
        var parts: array<f32, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            parts[r] = 0.0;
        }
        for (var i = 0u; i < KEY_STEPS; i++) {
            let at = i * LANES + lane;
            let real = at < params.key_fours;
            let four = select(vec4(0u), fours[i], real);
            let query_at = select(0u, at * QUADS, real);
            let quad = quad_of(four, 0u);
            for (var r = 0u; r < ROWS; r++) {
                parts[r] += dot(queries[r * quads + query_at], quad);
            }
            if QUADS == 2u {
                let quad = quad_of(four, 1u);
                for (var r = 0u; r < ROWS; r++) {
                    parts[r] += dot(queries[r * quads + query_at + 1u], quad);
                }
            }
        }
        for (var r = 0u; r < ROWS; r++) {
            let score = team_sum(parts[r], place);
            if lane == r % LANES {
                scores[team * ROWS + r] = select(LOWEST, score, team <= last);
            }
        }
        workgroupBarrier();
        if place.thread < ROWS * CHUNK {
            let r = place.thread / CHUNK;
            let n = place.thread % CHUNK;
            var largest = LOWEST;
            for (var i = 0u; i < CHUNK; i++) {
                largest = max(largest, scores[i * ROWS + r]);
            }
            var score = scores[n * ROWS + r];
            if params.soft_cap > 0.0 {
                // The largest stays the largest.
                largest = capped(largest);
                score = capped(score);
            }
            largest = max(largest, row_max[r]);
            weights[n * ROWS + r] = select(0.0, exp(score - largest), n <= last);
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
        // Not written out: what a layer's kernels execute has to stay in the caches of instructions.
        for (var n = 0u; n < min(last + 1u, CHUNK); n += AHEAD) {
            for (var i = 0u; i < AHEAD; i++) {
                let weight = weights[(n + i) * ROWS + row];
                let four = words[i];
                words[i] = values[slot_of(first_slot + min(n + AHEAD + i, last)) * value_stride + value_first];
                sum += weight;
                first_quad += weight * quad_of(four, 0u);
                if QUADS == 2u {
                    second_quad += weight * quad_of(four, 1u);
                }
            }
        }
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
        // A split that has seen nothing has no largest score.
        y[at] = select(LOWEST, row_next[row], begin < end);
        y[at + 1u] = sum;
    }
    let factor = select(1.0 / sum, 1.0, several);
    let channel = value_four * FOUR;
    let gated = params.gate_stride > 0u && !several;
    for (var j = 0u; j < FOUR; j++) {
        if channel + j < params.value_width {
            var value = factor * select(first_quad[j & 3u], second_quad[j & 3u], j >= 4u);
            if gated {
                value *= sigmoid(gates[query_head * params.gate_stride + params.gate_at + channel + j]);
            }
            y[at + select(0u, 2u, several) + channel + j] = value;
        }
    }
}
