// Attention of one token over a range of positions, for ROWS query heads that share a key head.
//
// A workgroup goes through CHUNK positions at a time. First LANES threads share a position: each has every LANES-th four words of its key,
// and its part of the score for every row. Then VALUE_LANES threads share a position: each has four words of its value, and adds them up for every
// row. Each of these GROUPS has a largest score of its own; in the end they are put together.
const CHUNK: u32 = THREADS / LANES;
const GROUPS: u32 = THREADS / VALUE_LANES;
const VALUE_STEPS: u32 = VALUE_LANES / LANES;
// Quads of what a thread takes of a row at once.
const QUADS: u32 = FOUR / 4u;
const ROOM: u32 = max(QUERY_QUADS, THREADS);
// Rows that are put together at once.
const AT_ONCE: u32 = min(ROWS, ROOM / THREADS);

// Queries, times the scale; in the end, what groups have added up.
var<workgroup> queries: array<vec4<f32>, ROOM>;
// [turn][position][row], in turn, so that nobody has to wait before writing the next.
var<workgroup> scores: array<f32, 2u * ROWS * CHUNK>;
// [group][row]
var<workgroup> group_max: array<f32, GROUPS * ROWS>;
var<workgroup> group_sums: array<f32, GROUPS * ROWS>;

// What this thread has: of a key, and of the results.
var<private> key: array<vec4<u32>, KEY_STEPS>;
var<private> row_max: array<f32, ROWS>;
var<private> row_sums: array<f32, ROWS>;
var<private> first_quads: array<vec4<f32>, ROWS>;
var<private> second_quads: array<vec4<f32>, ROWS>;

// Where the span's blocks are, for its kernel to say.
var<private> blocks: u32;

// Where a position's head is in a slab, in heads.
fn head_row(position: u32, head: u32) -> u32 {
    return place_in(blocks, position) * params.key_heads + head;
}

fn capped(score: f32) -> f32 {
    if params.soft_cap > 0.0 {
        return params.soft_cap * bounded_tanh(score / params.soft_cap);
    }
    return score;
}

// Asks for this thread's part of the key at a position. Positions beyond the last repeat it, and weigh nothing.
fn load_key(position: u32, head: u32, place: Place) {
    let row = head_row(position, head);
    for (var i = 0u; i < KEY_STEPS; i++) {
        key[i] = key_four(row, min(i * LANES + lane_of(place), params.key_fours - 1u));
    }
}

// All positions from `begin` to `end`, the keys of the first having been asked for, and queries being there. Each kernel has its own
// `key_words(at)` and `value_words(at)` for the slabs, and `key_at(loaded, four, position)` and `value_at(loaded, four, position)`: what was
// loaded, or what has just come.
fn attend(begin: u32, end: u32, head: u32, place: Place) {
    let lane = lane_of(place);
    let team = team_of(place);
    let quads = params.key_fours * QUADS;
    let group = place.thread / VALUE_LANES;
    let own_four = min(place.thread % VALUE_LANES, params.value_fours - 1u);
    // repeat r < ROWS
    row_max[#ru] = LOWEST;
    row_sums[#ru] = 0.0;
    first_quads[#ru] = vec4(0.0);
    second_quads[#ru] = vec4(0.0);
    // end repeat
    var turn = 0u;
    for (var start = begin; start < end; start += CHUNK) {
        let last = end - 1u - start;
        // Asked for before scores are known.
        var words: array<vec4<u32>, VALUE_STEPS>;
        for (var n = 0u; n < VALUE_STEPS; n++) {
            words[n] = value_four(head_row(start + min(n * GROUPS + group, last), head), own_four);
        }
        var parts: array<f32, ROWS>;
        // repeat r < ROWS
        parts[#ru] = 0.0;
        // end repeat
        for (var i = 0u; i < KEY_STEPS; i++) {
            let at = i * LANES + lane;
            let real = at < params.key_fours;
            let four = select(vec4(0u), key_at(key[i], min(at, params.key_fours - 1u), start + team), real);
            let query_at = select(0u, at * QUADS, real);
            let first = quad_of(four, 0u);
            // repeat r < ROWS
            parts[#ru] += dot(queries[#ru * quads + query_at], first);
            // end repeat
            if QUADS == 2u {
                let second = quad_of(four, 1u);
                // repeat r < ROWS
                parts[#ru] += dot(queries[#ru * quads + query_at + 1u], second);
                // end repeat
            }
        }
        // The next keys are on their way while values are added.
        load_key(min(start + CHUNK + team, end - 1u), head, place);
        // repeat r < ROWS
        let score_#r = team_sum(parts[#ru], place);
        if lane == #ru % LANES {
            scores[turn + team * ROWS + #ru] = select(LOWEST, capped(score_#r), team <= last);
        }
        // end repeat
        workgroupBarrier();
        // repeat r < ROWS
        var largest_#r = row_max[#ru];
        for (var n = 0u; n < VALUE_STEPS; n++) {
            largest_#r = max(largest_#r, scores[turn + (n * GROUPS + group) * ROWS + #ru]);
        }
        let keep_#r = exp(row_max[#ru] - largest_#r);
        row_max[#ru] = largest_#r;
        row_sums[#ru] *= keep_#r;
        first_quads[#ru] *= keep_#r;
        second_quads[#ru] *= keep_#r;
        // end repeat
        for (var n = 0u; n < VALUE_STEPS; n++) {
            let position = n * GROUPS + group;
            let four = value_at(words[n], own_four, start + position);
            // repeat r < ROWS
            let weight_#r = select(0.0, exp(scores[turn + position * ROWS + #ru] - row_max[#ru]), position <= last);
            row_sums[#ru] += weight_#r;
            first_quads[#ru] += weight_#r * quad_of(four, 0u);
            if QUADS == 2u {
                second_quads[#ru] += weight_#r * quad_of(four, 1u);
            }
            // end repeat
        }
        turn = ROWS * CHUNK - turn;
    }
    // What all groups have in common.
    if place.thread % VALUE_LANES == 0u {
        // repeat r < ROWS
        group_max[group * ROWS + #ru] = row_max[#ru];
        // end repeat
    }
    workgroupBarrier();
    // repeat r < ROWS
    let keep_#r = exp(row_max[#ru] - largest_of(#ru));
    first_quads[#ru] *= keep_#r;
    second_quads[#ru] *= keep_#r;
    if place.thread % VALUE_LANES == 0u {
        group_sums[group * ROWS + #ru] = keep_#r * row_sums[#ru];
    }
    // end repeat
}

fn largest_of(row: u32) -> f32 {
    var largest = LOWEST;
    for (var g = 0u; g < GROUPS; g++) {
        largest = max(largest, group_max[g * ROWS + row]);
    }
    return largest;
}

fn sum_of(row: u32) -> f32 {
    var sum = 0.0;
    for (var g = 0u; g < GROUPS; g++) {
        sum += group_sums[g * ROWS + row];
    }
    return sum;
}

// What all threads have of one of the rows that are put together at once, after `attend`; before and after that they wait for each other.
fn publish_quad(row: u32, quad: vec4<f32>, place: Place) {
    queries[row % AT_ONCE * THREADS + place.thread] = quad;
}

// Values of a row that are then there.
const RESULTS: u32 = 4u * VALUE_LANES;

fn published_result(row: u32, i: u32) -> f32 {
    var sum = 0.0;
    for (var g = 0u; g < GROUPS; g++) {
        sum += queries[row % AT_ONCE * THREADS + g * VALUE_LANES + i / 4u][i % 4u];
    }
    return sum;
}

// The channel of a result of the first or the second quad.
fn channel_of(i: u32, k: u32) -> u32 {
    return i / 4u * FOUR + 4u * k + i % 4u;
}
