// Attention of one token over a range of positions, for ROWS query heads that share a key head. With several splits, each writes what it
// has to `partial`, and attention_merge puts them together.
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
    // Row of the batch that the token is.
    token: u32,
    // Columns from one head's gate to the next, and to the first; 0 for no gates. Only where there is one split.
    gate_stride: u32,
    gate_at: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> q_more: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> keys: array<Four>;
@group(0) @binding(3) var<storage, read> values: array<Four>;
@group(0) @binding(4) var<storage, read> gates: array<f32>;
// [head][value channel], or, with splits, [split][head][max, sum, value channels].
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

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

// The first or the second quads of rows from `first_row` on.
fn write(first_row: u32, k: u32, split: u32, place: Place) {
    let group = params.heads / params.key_heads;
    let several = params.splits > 1u;
    let stride = params.value_width + select(0u, 2u, several);
    for (var n = place.thread; n < AT_ONCE * RESULTS; n += THREADS) {
        let r = first_row + n / RESULTS;
        let i = n % RESULTS;
        let row = place.workgroup.x * ROWS + r;
        let query_head = place.workgroup.y * group + row;
        let at = (select(params.token, split, several) * params.heads + query_head) * stride;
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
                    value *= sigmoid(gates[query_head * params.gate_stride + params.gate_at + channel]);
                }
                y[at + channel] = value;
            }
            if several && channel == 0u {
                // A split that has seen nothing has no largest score.
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
    let split = place.workgroup.z;
    let first = place.workgroup.x * ROWS;
    let begin = max(params.begin, split * params.split_len);
    let end = min(params.end, (split + 1u) * params.split_len);
    if begin < end {
        load_key(min(begin + team_of(place), end - 1u), head, place);
        let quads = params.key_fours * QUADS;
        let count = ROWS * quads;
        var loaded: array<vec4<f32>, QUERY_STEPS>;
        for (var n = 0u; n < QUERY_STEPS; n++) {
            let i = min(n * THREADS + place.thread, count - 1u);
            // Rows beyond the last repeat it, and are not written.
            let row = params.token * params.heads + head * group + min(first + i / quads, group - 1u);
            loaded[n] = query(row, i % quads);
        }
        for (var n = 0u; n < QUERY_STEPS; n++) {
            if n * THREADS + place.thread < count {
                queries[n * THREADS + place.thread] = params.scale * loaded[n];
            }
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
        write(#ru + 1u - AT_ONCE, 0u, split, place);
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
            write(#ru + 1u - AT_ONCE, 1u, split, place);
        }
    }
    // end repeat
}
