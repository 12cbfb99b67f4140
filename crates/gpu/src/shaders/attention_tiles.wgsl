// Softmax-weighted sums of values for many query rows on the GPU's matrix units: 64 rows that share a key head (the heads of its
// group, of several tokens of a span) per workgroup, 64 positions at a time, which are a block. Scores and sums are 64 x 64 tiles, made of pieces
// of 16 x 16: a subgroup has two, one above the other. What is multiplied goes through shared memory as halves.
//
// Sums cannot be scaled in place, so weights are relative to a score that was the largest once: only when one comes that is larger by
// more than HEADROOM do sums go through shared memory to be scaled.
struct Params {
    // Spans from `first_span` on, of which those are taken that have at least two tokens; rows of the batch from the first of them on.
    first_span: u32,
    first_row: u32,
    rows: u32,
    // Query heads of a key head.
    group: u32,
    // Query heads, key heads.
    heads: u32,
    key_heads: u32,
    // Eights of a query, filled up to whole slices, and of a head in the slabs of keys and values.
    query_eights: u32,
    key_eights: u32,
    value_eights: u32,
    value_width: u32,
    // Where the tables of all spans begin, and words from one to the next.
    table: u32,
    table_stride: u32,
    // 0 for none.
    window: u32,
    scale: f32,
    // 0 for none.
    soft_cap: f32,
    // Most parts of a span, and positions of a part: whole blocks.
    parts: u32,
    part_len: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

struct Halves {
    a: vec4<f16>,
    b: vec4<f16>,
}

// [key head][row][head of the group][channel], and what they were divided by.
@group(0) @binding(0) var<storage, read> queries: array<Halves>;
@group(0) @binding(1) var<storage, read> factors: array<f32>;
// [place][key head][channel]
@group(0) @binding(2) var<storage, read> keys: array<Halves>;
@group(0) @binding(3) var<storage, read> values: array<Halves>;
// [row][head][value channel], or, with parts, [part][row][head][max, sum, value channels].
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read> steps: array<u32>;

const TILE: u32 = 64u;
// Eights of a slice of 64 channels, and fours from row to row in shared memory: two more, so that neighbours do not lie in the same bank.
const EIGHTS: u32 = 8u;
const STRIDE: u32 = 18u;
const SCORE_STRIDE: u32 = 68u;
// Rows from one eight that a thread brings to its other.
const APART: u32 = THREADS / EIGHTS;
const HEADROOM: f32 = 8.0;

// [row][channel or position]: a slice of queries, or the weights. [position][channel]: a slice of keys or values.
var<workgroup> left: array<vec4<f16>, TILE * STRIDE>;
var<workgroup> right: array<vec4<f16>, TILE * STRIDE>;
// [row][position], or a piece of each subgroup.
var<workgroup> scores: array<f32, TILE * SCORE_STRIDE>;
// What sums are multiplied by, for each row.
var<workgroup> keeps: array<f32, TILE>;
// Whether a subgroup has met a score that is too large.
var<workgroup> raised: array<vec4<u32>, 2>;
// Whether there is nothing to do, which all threads have to see alike. As long as what matrices are loaded from has to be aligned.
var<workgroup> idle: vec4<u32>;

// What the thread brings: an eight of two rows of a slice of queries, and of two positions of a slice of keys or values.
// repeat j < 2
var<private> next_left_#j: Halves;
var<private> next_right_#j: Halves;
// Where its row begins among the queries; where its position is in the slabs, and whether it is there at all.
var<private> query_#j: u32;
var<private> head_#j: u32;
var<private> exists_#j: bool;
// end repeat

fn bring_scores(i: u32) {
    // repeat j < 2
    if i < params.query_eights {
        next_left_#j = queries[query_#j + i];
    }
    next_right_#j = Halves();
    if exists_#j && i < params.key_eights {
        next_right_#j = keys[head_#j * params.key_eights + i];
    }
    // end repeat
}

fn bring_values(i: u32) {
    // repeat j < 2
    next_right_#j = Halves();
    if exists_#j && i < params.value_eights {
        next_right_#j = values[head_#j * params.value_eights + i];
    }
    // end repeat
}

// The query rows of a tile, counted from the span's first, and the row of y that is the span's first.
struct TileRows {
    first: u32,
    last: u32,
    y_row: u32,
}

// Scales each subgroup's piece in `scores` by what its rows keep.
fn scale_piece(row: u32, place: Place) {
    workgroupBarrier();
    for (var n = place.lane; n < 256u; n += 32u) {
        scores[place.subgroup * 256u + n] *= keeps[row + n / 16u];
    }
    workgroupBarrier();
}

// Writes each subgroup's piece in `scores`, of rows from `row` of the tile and the channel of its first column.
fn write_piece(row: u32, first_channel: u32, tile: TileRows, place: Place) {
    let several = params.parts > 1u;
    let channel = first_channel + place.lane % 16u;
    workgroupBarrier();
    for (var n = place.lane; n < 256u; n += 32u) {
        let q = tile.first + row + n / 16u;
        if q <= tile.last && channel < params.value_width {
            let at = result_at(q, place.workgroup.y, tile) + select(0u, 2u, several) + channel;
            y[at] = keeps[row + n / 16u] * scores[place.subgroup * 256u + n];
        }
    }
    workgroupBarrier();
}

// Where the result of a query row begins.
fn result_at(q: u32, head: u32, tile: TileRows) -> u32 {
    let row = (tile.y_row + q / params.group) * params.heads + head * params.group + q % params.group;
    return row * (params.value_width + select(0u, 2u, params.parts > 1u));
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let thread = place.thread;
    let head = place.workgroup.y;
    let number = params.first_span + place.workgroup.z / params.parts;
    let part = place.workgroup.z % params.parts;
    let span = span_of(number);
    let count = span.len * params.group;
    let tiles = (count + TILE - 1u) / TILE;
    if thread == 0u {
        idle.x = u32(span.len < 2u || place.workgroup.x >= tiles || part >= parts_of(span));
    }
    if workgroupUniformLoad(&idle).x != 0u {
        return;
    }
    let blocks = blocks_of(params.table + number * params.table_stride);
    // Later rows see more and come first, so that no long tile begins when all others are done.
    let first = (tiles - 1u - place.workgroup.x) * TILE;
    let last = min(first + TILE, count) - 1u;
    // Partial results count the rows from the first span on.
    let y_row = select(span.row, part * params.rows + span.row - params.first_row, params.parts > 1u);
    let tile = TileRows(first, last, y_row);
    let part_begin = parts_begin(span) + part * params.part_len;
    let begin = max(first_seen(span.position + first / params.group), part_begin);
    let end = min(span.position + last / params.group + 1u, part_begin + params.part_len);
    let first_query = (head * params.rows + span.row - params.first_row) * params.group;
    let eight = thread % EIGHTS;
    let row = thread / EIGHTS;
    // repeat j < 2
    query_#j = (first_query + min(first + row + #ju * APART, last)) * params.query_eights;
    let at_#j = (row + #ju * APART) * STRIDE + 2u * eight;
    // end repeat
    // The subgroup's pieces: 16 rows from 16 * row_piece and the 16 that follow, and 16 columns.
    let column_piece = place.subgroup % 4u;
    let row_piece = place.subgroup / 4u * 2u;
    let upper_at = row_piece * 16u * STRIDE;
    let lower_at = upper_at + 16u * STRIDE;
    // repeat s < SLICES
    var upper_#s = coop_mat16x16<f32, C>();
    var lower_#s = coop_mat16x16<f32, C>();
    // end repeat
    // In softmax four neighbours have a row, and 16 positions each.
    let own_row = thread / 4u;
    let own_start = thread % 4u * 16u;
    let own_place = min(first + own_row, last);
    let own_position = span.position + own_place / params.group;
    let own_seen = vec2(first_seen(own_position), own_position + 1u);
    let factor = params.scale * factors[first_query + own_place];
    var reference = LOWEST;
    var sum = 0.0;

    let first_start = begin / TILE * TILE;
    for (var start = first_start; start < end; start += TILE) {
        let slab_row = place_in(blocks, start);
        // repeat j < 2
        let position_of_#j = start + row + #ju * APART;
        head_#j = (slab_row + row + #ju * APART) * params.key_heads + head;
        exists_#j = position_of_#j >= begin && position_of_#j < end;
        // end repeat
        // Scores.
        var upper = coop_mat16x16<f32, C>();
        var lower = coop_mat16x16<f32, C>();
        bring_scores(eight);
        for (var slice = 0u; slice < params.query_eights; slice += EIGHTS) {
            // repeat j < 2
            left[at_#j] = next_left_#j.a;
            left[at_#j + 1u] = next_left_#j.b;
            right[at_#j] = next_right_#j.a;
            right[at_#j + 1u] = next_right_#j.b;
            // end repeat
            workgroupBarrier();
            // What comes next is on its way during the products.
            bring_scores(slice + EIGHTS + eight);
            for (var k = 0u; k < 2u * EIGHTS; k += 4u) {
                let key = coopLoad<coop_mat16x16<f16, B>>(&right[column_piece * 16u * STRIDE + k], STRIDE);
                let a = coopLoadT<coop_mat16x16<f16, A>>(&left[upper_at + k], STRIDE);
                upper = coopMultiplyAdd(a, key, upper);
                let b = coopLoadT<coop_mat16x16<f16, A>>(&left[lower_at + k], STRIDE);
                lower = coopMultiplyAdd(b, key, lower);
            }
            workgroupBarrier();
        }
        coopStoreT(upper, &scores[row_piece * 16u * SCORE_STRIDE + column_piece * 16u], SCORE_STRIDE);
        coopStoreT(lower, &scores[(row_piece + 1u) * 16u * SCORE_STRIDE + column_piece * 16u], SCORE_STRIDE);
        bring_values(eight);
        workgroupBarrier();

        var largest = LOWEST;
        // repeat j < 4
        let at_score_#j = own_row * SCORE_STRIDE + own_start + 4u * #ju;
        var own_#j = factor * vec4(scores[at_score_#j], scores[at_score_#j + 1u], scores[at_score_#j + 2u], scores[at_score_#j + 3u]);
        if params.soft_cap != 0.0 {
            let x = own_#j / params.soft_cap;
            own_#j = params.soft_cap * vec4(bounded_tanh(x.x), bounded_tanh(x.y), bounded_tanh(x.z), bounded_tanh(x.w));
        }
        let position_#j = start + own_start + 4u * #ju + vec4(0u, 1u, 2u, 3u);
        own_#j = select(vec4(LOWEST), own_#j, (position_#j >= vec4(own_seen.x)) & (position_#j < vec4(min(own_seen.y, end))));
        largest = max(largest, max(max(own_#j.x, own_#j.y), max(own_#j.z, own_#j.w)));
        // end repeat
        largest = max(largest, subgroupShuffleXor(largest, 1u));
        largest = max(largest, subgroupShuffleXor(largest, 2u));
        let raise = largest > reference + HEADROOM;
        // There is nothing to scale the first time.
        let scales = subgroupAny(raise) && start != first_start;
        if place.lane == 0u {
            raised[place.subgroup / 4u][place.subgroup % 4u] = u32(scales);
        }
        let keep = select(1.0, exp(reference - largest), raise);
        if raise {
            reference = largest;
        }
        sum *= keep;
        if thread % 4u == 0u {
            keeps[own_row] = keep;
        }
        // A barrier, too.
        let flags = workgroupUniformLoad(&raised);
        if any(flags[0] + flags[1] != vec4(0u)) {
            // repeat s < SLICES
            coopStoreT(upper_#s, &scores[place.subgroup * 256u], 16u);
            scale_piece(row_piece * 16u, place);
            upper_#s = coopLoadT<coop_mat16x16<f32, C>>(&scores[place.subgroup * 256u], 16u);
            coopStoreT(lower_#s, &scores[place.subgroup * 256u], 16u);
            scale_piece(row_piece * 16u + 16u, place);
            lower_#s = coopLoadT<coop_mat16x16<f32, C>>(&scores[place.subgroup * 256u], 16u);
            // end repeat
        }
        // Weights.
        // repeat j < 4
        let weights_#j = select(exp(own_#j - reference), vec4(0.0), own_#j == vec4(LOWEST));
        sum += (weights_#j.x + weights_#j.y) + (weights_#j.z + weights_#j.w);
        left[own_row * STRIDE + own_start / 4u + #ju] = vec4<f16>(weights_#j);
        // end repeat
        // Values.
        // repeat s < SLICES
        // repeat j < 2
        right[at_#j] = next_right_#j.a;
        right[at_#j + 1u] = next_right_#j.b;
        // end repeat
        workgroupBarrier();
        if #su + 1u < SLICES {
            bring_values((#su + 1u) * EIGHTS + eight);
        }
        for (var k = 0u; k < 4u; k++) {
            let value = coopLoadT<coop_mat16x16<f16, B>>(&right[k * 16u * STRIDE + column_piece * 4u], STRIDE);
            let a = coopLoadT<coop_mat16x16<f16, A>>(&left[upper_at + 4u * k], STRIDE);
            upper_#s = coopMultiplyAdd(a, value, upper_#s);
            let b = coopLoadT<coop_mat16x16<f16, A>>(&left[lower_at + 4u * k], STRIDE);
            lower_#s = coopMultiplyAdd(b, value, lower_#s);
        }
        workgroupBarrier();
        // end repeat
    }

    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    let several = params.parts > 1u;
    if thread % 4u == 0u {
        keeps[own_row] = select(1.0 / sum, 1.0, several);
        if several && first + own_row <= last {
            let at = result_at(own_place, head, tile);
            y[at] = reference;
            y[at + 1u] = sum;
        }
    }
    workgroupBarrier();
    // repeat s < SLICES
    coopStoreT(upper_#s, &scores[place.subgroup * 256u], 16u);
    write_piece(row_piece * 16u, #su * TILE + column_piece * 16u, tile, place);
    coopStoreT(lower_#s, &scores[place.subgroup * 256u], 16u);
    write_piece(row_piece * 16u + 16u, #su * TILE + column_piece * 16u, tile, place);
    // end repeat
}
