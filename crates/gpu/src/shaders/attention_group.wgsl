// Attention of spans of one token over many positions on the GPU's matrix units: the query heads that share a key head are the rows of a piece
// of 16, and a workgroup has SPLIT positions of a span. First each subgroup has scores of 16 positions, then sums of 16 channels. Keys and values go
// through shared memory, two slices ahead in registers. What a workgroup has is put together with the others' by attention_merge.
struct Params {
    // Query heads, key heads.
    heads: u32,
    key_heads: u32,
    // A query is [q | q_more]: quads of them.
    quads: u32,
    quads_more: u32,
    // Eights of a head in the slabs of keys and values; value channels.
    key_eights: u32,
    value_eights: u32,
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
    // Positions of a part: SPLIT.
    part_len: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

struct Halves {
    a: vec4<f16>,
    b: vec4<f16>,
}

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> q_more: array<vec4<f32>>;
// [place][key head][channel]
@group(0) @binding(2) var<storage, read> keys: array<Halves>;
@group(0) @binding(3) var<storage, read> values: array<Halves>;
// [part][span][head][max, sum, value channels]
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read> steps: array<u32>;

const SPLIT: u32 = 128u;
const ROWS: u32 = 16u;
// A slice of keys: 64 channels of all positions. One of values: 128 channels of half of them. In eights, and in fours from row to row in
// shared memory: two more, so that neighbours do not lie in the same bank.
const KEY_SLICE: u32 = 8u;
const KEY_STRIDE: u32 = 18u;
const VALUE_SLICE: u32 = 16u;
const VALUE_STRIDE: u32 = 34u;
const HALF_SPLIT: u32 = SPLIT / 2u;
const QUERY_STRIDE: u32 = 16u * KEY_SLICES + 2u;
const WEIGHT_STRIDE: u32 = 34u;
const SCORE_STRIDE: u32 = SPLIT + 4u;
// Threads of a row, and quads of its query that each of them has.
const ROW_THREADS: u32 = THREADS / ROWS;
const QUERY_STEPS: u32 = KEY_SLICES;

// [row][channel]: queries; then [row][position]: weights.
var<workgroup> left: array<vec4<f16>, ROWS * max(QUERY_STRIDE, WEIGHT_STRIDE)>;
// [position][channel]: a slice.
var<workgroup> right: array<vec4<f16>, SPLIT * KEY_STRIDE>;
// [row][position]; then [row][channel].
var<workgroup> scores: array<f32, ROWS * SCORE_STRIDE>;
// Whether there is nothing to do, which all threads have to see alike. As long as what matrices are loaded from has to be aligned.
var<workgroup> idle: vec4<u32>;

// What the thread brings of the next slices, and where its positions are in the slabs.
// repeat b < 2
// repeat j < 4
var<private> next_#b_#j: Halves;
// end repeat
// end repeat
// repeat j < 4
var<private> key_at_#j: u32;
var<private> value_at_0_#j: u32;
var<private> value_at_1_#j: u32;
// end repeat

// Four channels of a query.
fn query(row: u32, c: u32) -> vec4<f32> {
    let plain = q[row * params.quads + min(c, params.quads - 1u)];
    let behind = q_more[row * params.quads_more + min(max(c, params.quads) - params.quads, max(params.quads_more, 1u) - 1u)];
    return select(select(vec4(0.0), behind, c < params.quads + params.quads_more), plain, c < params.quads);
}

fn capped(score: f32) -> f32 {
    if params.soft_cap > 0.0 {
        return params.soft_cap * bounded_tanh(score / params.soft_cap);
    }
    return score;
}

// What is not there repeats what is: queries are 0 there, or weights.
// repeat b < 2
fn bring_keys_#b(slice: u32, thread: u32) {
    let eight = min(slice * KEY_SLICE + thread % KEY_SLICE, params.key_eights - 1u);
    // repeat j < 4
    next_#b_#j = keys[key_at_#j + eight];
    // end repeat
}

// The first or the second half of the positions.
fn bring_values_#b(slice: u32, thread: u32) {
    let eight = min(slice * VALUE_SLICE + thread % VALUE_SLICE, params.value_eights - 1u);
    // repeat j < 4
    next_#b_#j = values[value_at_#b_#j + eight];
    // end repeat
}

// end repeat
// Where a position's head is in a slab, in heads.
fn head_row(blocks: u32, position: u32, head: u32) -> u32 {
    return place_in(blocks, position) * params.key_heads + head;
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let thread = place.subgroup * 32u + place.lane;
    let head = place.workgroup.x;
    let number = params.first_span + place.workgroup.z;
    let span = span_of(number);
    let blocks = blocks_of(params.table + number * params.table_stride);
    let last = span.position;
    let group = params.heads / params.key_heads;
    let begin = parts_begin(span) + place.workgroup.y * params.part_len;
    // repeat j < 4
    let key_#j = min(begin + thread / KEY_SLICE + #ju * (THREADS / KEY_SLICE), last);
    key_at_#j = head_row(blocks, key_#j, head) * params.key_eights;
    let row_#j = begin + thread / VALUE_SLICE + #ju * (THREADS / VALUE_SLICE);
    value_at_0_#j = head_row(blocks, min(row_#j, last), head) * params.value_eights;
    value_at_1_#j = head_row(blocks, min(row_#j + HALF_SPLIT, last), head) * params.value_eights;
    // end repeat
    bring_keys_0(0u, thread);
    bring_keys_1(1u, thread);
    if thread == 0u {
        idle.x = u32(span.len != 1u || begin > last);
    }
    if workgroupUniformLoad(&idle).x != 0u {
        return;
    }

    // Queries as halves of the largest channel of their row. Rows beyond the last are 0.
    let row = thread / ROW_THREADS;
    let own = thread % ROW_THREADS;
    let query_head = head * group + min(row, group - 1u);
    var loaded: array<vec4<f32>, QUERY_STEPS>;
    for (var n = 0u; n < QUERY_STEPS; n++) {
        loaded[n] = query(span.row * params.heads + query_head, n * ROW_THREADS + own);
    }
    var size = 0.0;
    for (var n = 0u; n < QUERY_STEPS; n++) {
        let sizes = abs(loaded[n]);
        size = max(size, max(max(sizes.x, sizes.y), max(sizes.z, sizes.w)));
    }
    for (var distance = ROW_THREADS / 2u; distance > 0u; distance /= 2u) {
        size = max(size, subgroupShuffleXor(size, distance));
    }
    let inverse = select(0.0, 1.0 / size, row < group && size > 0.0);
    for (var n = 0u; n < QUERY_STEPS; n++) {
        left[row * QUERY_STRIDE + n * ROW_THREADS + own] = vec4<f16>(loaded[n] * inverse);
    }

    // Scores of a subgroup's positions.
    var sum = coop_mat16x16<f32, C>();
    for (var slice = 0u; slice < KEY_SLICES; slice += 2u) {
        // repeat b < 2
        // repeat j < 4
        let at_#b_#j = (thread / KEY_SLICE + #ju * (THREADS / KEY_SLICE)) * KEY_STRIDE + thread % KEY_SLICE * 2u;
        right[at_#b_#j] = next_#b_#j.a;
        right[at_#b_#j + 1u] = next_#b_#j.b;
        // end repeat
        workgroupBarrier();
        if slice + 2u < KEY_SLICES {
            bring_keys_#b(slice + 2u + #bu, thread);
        } else {
            bring_values_#b(0u, thread);
        }
        for (var k = 0u; k < 16u; k += 4u) {
            let a = coopLoadT<coop_mat16x16<f16, A>>(&left[(slice + #bu) * 16u + k], QUERY_STRIDE);
            let key = coopLoad<coop_mat16x16<f16, B>>(&right[place.subgroup * 16u * KEY_STRIDE + k], KEY_STRIDE);
            sum = coopMultiplyAdd(a, key, sum);
        }
        workgroupBarrier();
        // end repeat
    }
    coopStoreT(sum, &scores[place.subgroup * 16u], SCORE_STRIDE);
    workgroupBarrier();

    // Weights: a thread has eight of its row.
    var largest = LOWEST;
    var own_scores: array<f32, 8>;
    for (var i = 0u; i < 8u; i++) {
        let score = capped(params.scale * size * scores[row * SCORE_STRIDE + own * 8u + i]);
        own_scores[i] = select(LOWEST, score, begin + own * 8u + i <= last);
        largest = max(largest, own_scores[i]);
    }
    for (var distance = ROW_THREADS / 2u; distance > 0u; distance /= 2u) {
        largest = max(largest, subgroupShuffleXor(largest, distance));
    }
    var total = 0.0;
    for (var i = 0u; i < 8u; i++) {
        own_scores[i] = select(exp(own_scores[i] - largest), 0.0, own_scores[i] == LOWEST);
        total += own_scores[i];
    }
    for (var distance = ROW_THREADS / 2u; distance > 0u; distance /= 2u) {
        total += subgroupShuffleXor(total, distance);
    }
    for (var i = 0u; i < 2u; i++) {
        let four = vec4(own_scores[4u * i], own_scores[4u * i + 1u], own_scores[4u * i + 2u], own_scores[4u * i + 3u]);
        left[row * WEIGHT_STRIDE + own * 2u + i] = vec4<f16>(four);
    }
    let item = place.workgroup.y * params.spans + place.workgroup.z;
    let y_at = (item * params.heads + query_head) * (params.value_width + 2u);
    if row < group && own == 0u {
        y[y_at] = largest;
        y[y_at + 1u] = total;
    }

    // Sums of a subgroup's channels.
    for (var slice = 0u; slice < VALUE_SLICES; slice++) {
        var result = coop_mat16x16<f32, C>();
        // repeat b < 2
        // repeat j < 4
        let at_#b_#j = (thread / VALUE_SLICE + #ju * (THREADS / VALUE_SLICE)) * VALUE_STRIDE + thread % VALUE_SLICE * 2u;
        right[at_#b_#j] = next_#b_#j.a;
        right[at_#b_#j + 1u] = next_#b_#j.b;
        // end repeat
        workgroupBarrier();
        bring_values_#b(slice + 1u, thread);
        for (var k = 0u; k < 4u; k++) {
            let a = coopLoadT<coop_mat16x16<f16, A>>(&left[#bu * (HALF_SPLIT / 4u) + 4u * k], WEIGHT_STRIDE);
            let value = coopLoadT<coop_mat16x16<f16, B>>(&right[k * 16u * VALUE_STRIDE + place.subgroup * 4u], VALUE_STRIDE);
            result = coopMultiplyAdd(a, value, result);
        }
        workgroupBarrier();
        // end repeat
        coopStoreT(result, &scores[place.subgroup * 16u], SCORE_STRIDE);
        workgroupBarrier();
        for (var i = 0u; i < 8u; i++) {
            let channel = slice * 128u + i * ROW_THREADS + own;
            if row < group && channel < params.value_width {
                y[y_at + 2u + channel] = scores[row * SCORE_STRIDE + i * ROW_THREADS + own];
            }
        }
    }
}
