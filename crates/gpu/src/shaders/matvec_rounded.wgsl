// y[r] = W[r] . input (+ bias[r]) (+ residual[r]) for one token, the input rounded. LANES threads share ROWS rows; workgroups take turns with
// `blocks` blocks of rows, and with AHEAD ask for the next block while they multiply. With GATED, rows of two matrices: y[r] = act(W[r] . input) * (W[up + r] . input).
//
// What the input is made of is the business of a prologue, which has bindings of its own (pieces/prologue_*.wgsl): it loads, prepares and makes eight values
// at a time. One that makes the residual stream h of a layer writes it into y behind the results. With DIGITS, one more workgroup rounds
// the input of experts.
struct Params {
    row_words: u32,
    row_scales: u32,
    cols: u32,
    eights: u32,
    // Results, rows of this part before the first, and where the first result goes.
    rows: u32,
    skip: u32,
    first: u32,
    // With GATED, rows from a gate to its up.
    up: u32,
    has_bias: u32,
    has_residual: u32,
    // Blocks of the whole product, and workgroups that share them.
    blocks: u32,
    groups: u32,
    // What prologues take: of norms; values of a slice or head that shares one norm or sum; splits of positions; a factor on h; and where h begins in y.
    eps: f32,
    slice_width: u32,
    splits: u32,
    factor: f32,
    h_at: u32,
    // Where digits begin in y, and bits of the weights they are for.
    digits_at: u32,
    digit_bits: u32,
    // Where the norms of a layer's end and the next one's begin in `vectors`, in fours.
    dense_norm_at: u32,
    routed_norm_at: u32,
    post_norm_at: u32,
    norm_at: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(2) var<storage, read_write> y: array<f32>;

const TEAMS: u32 = THREADS / LANES;
// Results of a team at a time.
const RESULTS: u32 = (ROWS + GATED) / (1u + GATED);

// The sum of squares of what this thread has of the input, whose norm's factor comes in the end.
var<private> squares: vec2<f32>;

fn write_h(local: u32, h: Eight) {
    for (var i = 0u; i < 4u; i++) {
        y[params.h_at + 8u * local + i] = h.a[i];
        y[params.h_at + 8u * local + 4u + i] = h.b[i];
    }
}

fn row_of(result: u32, r: u32) -> u32 {
    if GATED == 1u {
        return params.skip + min(result + r / 2u, params.rows - 1u) + (r & 1u) * params.up;
    }
    return params.skip + min(result + r, params.rows - 1u);
}

fn result_of(block: u32, place: Place) -> u32 {
    return (block * TEAMS + team_of(place)) * RESULTS;
}

fn product(place: Place) {
    let lane = lane_of(place);
    let groups = params.eights / 4u;
    if !CHAINED {
        // It is needed first.
        load_input(0u, min(ROOM, groups), place);
    }
    load_norms(0u, min(ROOM, groups), place);
    var factor = 1.0;
    var held: array<Codes, ROWS * STEPS>;
    var held_scales: array<Scale, ROWS * STEPS>;
    let begin = folded(place);
    for (var block = begin; block < params.blocks; block += params.groups) {
        let result = result_of(block, place);
        // The last asks for its own again, which are near.
        let next = result_of(select(block, block + params.groups, block + params.groups < params.blocks), place);
        var sums: array<f32, ROWS>;
        var biases: array<f32, RESULTS>;
        var residuals: array<f32, RESULTS>;
        for (var r = 0u; r < ROWS; r++) {
            sums[r] = 0.0;
        }
        // One pass, unless the row is LONG.
        for (var start = 0u; start < select(1u, groups, LONG == 1u); start += ROOM) {
            let count = min(ROOM, groups - start);
            if LONG == 1u && (block > begin || start > 0u) {
                load_norms(start, count, place);
                load_input(start, count, place);
            }
            if AHEAD == 0u || block == begin {
                for (var step = 0u; step < STEPS; step++) {
                    let group = start + min(step * LANES + lane, count - 1u);
                    for (var r = 0u; r < ROWS; r++) {
                        held[step * ROWS + r] = codes32(row_of(result, r), group);
                        held_scales[step * ROWS + r] = scale_at(row_of(result, r), 4u * group);
                    }
                }
            }
            for (var r = 0u; r < RESULTS; r++) {
                biases[r] = bias_of(params.first + min(result + r, params.rows - 1u));
            }
            if CHAINED && block == begin && start == 0u {
                wait_for_inputs(place);
                load_input(0u, count, place);
            }
            for (var r = 0u; r < RESULTS; r++) {
                residuals[r] = residual_of(params.first + min(result + r, params.rows - 1u));
            }
            if LONG == 1u || block == begin {
                // All blocks have the same input: one that there is room for is prepared once.
                prepare(count, place);
                make_input(count, place);
                if SLICED {
                    workgroupBarrier();
                }
                round_input(start, count, place);
                if NORMED && block == begin {
                    publish_sum(squares, place);
                }
                workgroupBarrier();
            }
            for (var step = 0u; step < STEPS; step++) {
                let group = step * LANES + lane;
                let input = digits_of(group);
                for (var r = 0u; r < ROWS; r++) {
                    let i = step * ROWS + r;
                    sums[r] += group_product(held[i], scale_of(held_scales[i]), input, group);
                    if AHEAD == 1u {
                        let there = min(group, groups - 1u);
                        held[i] = codes32(row_of(next, r), there);
                        held_scales[i] = scale_at(row_of(next, r), 4u * there);
                    }
                }
            }
            if LONG == 1u {
                workgroupBarrier();
            }
        }
        if NORMED && block == begin {
            factor = inverse_of(published_sum(place), params.cols, params.eps);
        }
        for (var r = 0u; r < ROWS; r++) {
            sums[r] = factor * team_sum(sums[r], place);
        }
        if lane == 0u {
            for (var r = 0u; r < RESULTS; r++) {
                if result + r < params.rows {
                    let own = params.first + result + r;
                    if GATED == 1u {
                        y[own] = activate(sums[2u * r]) * sums[2u * r + 1u];
                    } else {
                        y[own] = sums[r] + select(0.0, biases[r], params.has_bias != 0u) + select(0.0, residuals[r], params.has_residual != 0u);
                    }
                }
            }
        }
    }
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    if DIGITS && folded(place) == params.groups {
        write_beside(place);
    } else {
        product(place);
    }
    announce(place);
}
