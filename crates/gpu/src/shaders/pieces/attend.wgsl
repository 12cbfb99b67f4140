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

fn slot_of(slot: u32) -> u32 {
    return select(slot, slot - params.slots, slot >= params.slots);
}

fn capped(score: f32) -> f32 {
    if params.soft_cap > 0.0 {
        return params.soft_cap * bounded_tanh(score / params.soft_cap);
    }
    return score;
}

// Asks for this thread's part of the key at a position. Positions beyond the last repeat it, and weigh nothing.
fn load_key(position: u32, head: u32, place: Place) {
    let row = position % params.slots * params.key_heads + head;
    for (var i = 0u; i < KEY_STEPS; i++) {
        key[i] = key_four(row, min(i * LANES + lane_of(place), params.key_fours - 1u));
    }
}

// All positions from `begin` to `end`, the keys of the first having been asked for, and queries being there. Each kernel has its own
// `key_words(at)` and `value_words(at)` for the caches, and `key_at(loaded, four, position)` and `value_at(loaded, four, position)`: what was
// loaded, or what has just come.
fn attend(begin: u32, end: u32, head: u32, place: Place) {
    let lane = lane_of(place);
    let team = team_of(place);
    let quads = params.key_fours * QUADS;
    let group = place.thread / VALUE_LANES;
    let own_four = min(place.thread % VALUE_LANES, params.value_fours - 1u);
    for (var r = 0u; r < ROWS; r++) {
        row_max[r] = LOWEST;
        row_sums[r] = 0.0;
        first_quads[r] = vec4(0.0);
        second_quads[r] = vec4(0.0);
    }
    var turn = 0u;
    for (var start = begin; start < end; start += CHUNK) {
        let first_slot = start % params.slots;
        let last = end - 1u - start;
        // Asked for before scores are known.
        var words: array<vec4<u32>, VALUE_STEPS>;
        for (var n = 0u; n < VALUE_STEPS; n++) {
            let slot = slot_of(first_slot + min(n * GROUPS + group, last));
            words[n] = value_four(slot * params.key_heads + head, own_four);
        }
        var parts: array<f32, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            parts[r] = 0.0;
        }
        for (var i = 0u; i < KEY_STEPS; i++) {
            let at = i * LANES + lane;
            let real = at < params.key_fours;
            let four = select(vec4(0u), key_at(key[i], min(at, params.key_fours - 1u), start + team), real);
            let query_at = select(0u, at * QUADS, real);
            let first = quad_of(four, 0u);
            for (var r = 0u; r < ROWS; r++) {
                parts[r] += dot(queries[r * quads + query_at], first);
            }
            if QUADS == 2u {
                let second = quad_of(four, 1u);
                for (var r = 0u; r < ROWS; r++) {
                    parts[r] += dot(queries[r * quads + query_at + 1u], second);
                }
            }
        }
        // The next keys are on their way while values are added.
        load_key(min(start + CHUNK + team, end - 1u), head, place);
        for (var r = 0u; r < ROWS; r++) {
            let score = team_sum(parts[r], place);
            if lane == r % LANES {
                scores[turn + team * ROWS + r] = select(LOWEST, capped(score), team <= last);
            }
        }
        workgroupBarrier();
        for (var r = 0u; r < ROWS; r++) {
            var largest = row_max[r];
            for (var n = 0u; n < VALUE_STEPS; n++) {
                largest = max(largest, scores[turn + (n * GROUPS + group) * ROWS + r]);
            }
            let keep = exp(row_max[r] - largest);
            row_max[r] = largest;
            row_sums[r] *= keep;
            first_quads[r] *= keep;
            second_quads[r] *= keep;
        }
        for (var n = 0u; n < VALUE_STEPS; n++) {
            let position = n * GROUPS + group;
            let four = value_at(words[n], own_four, start + position);
            for (var r = 0u; r < ROWS; r++) {
                let weight = select(0.0, exp(scores[turn + position * ROWS + r] - row_max[r]), position <= last);
                row_sums[r] += weight;
                first_quads[r] += weight * quad_of(four, 0u);
                if QUADS == 2u {
                    second_quads[r] += weight * quad_of(four, 1u);
                }
            }
        }
        turn = ROWS * CHUNK - turn;
    }
    // What all groups have in common.
    if place.thread % VALUE_LANES == 0u {
        for (var r = 0u; r < ROWS; r++) {
            group_max[group * ROWS + r] = row_max[r];
        }
    }
    workgroupBarrier();
    for (var r = 0u; r < ROWS; r++) {
        let keep = exp(row_max[r] - largest_of(r));
        first_quads[r] *= keep;
        second_quads[r] *= keep;
        if place.thread % VALUE_LANES == 0u {
            group_sums[group * ROWS + r] = keep * row_sums[r];
        }
    }
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
