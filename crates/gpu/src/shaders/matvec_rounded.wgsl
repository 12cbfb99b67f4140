// y[r] = W[r] . input (+ bias[r]) (+ residual[r]) for one token, the input rounded. LANES threads share ROWS rows; workgroups take turns with
// `blocks` blocks of rows, and with AHEAD ask for the next block while they multiply. With GATED, rows of two matrices: y[r] = act(W[r] . input) * (W[up + r] . input).
//
// INPUT: 0 x; 1 rms(x) * w; 2 rms(x) * w * silu(z), the norm over slices of `width`; 3 rms(h) * z, where h = residual + rms(x) * w;
// 4 what `attention_heads` has in splits; 5 rms(h) * w3, where h = (residual + rms(rms(x) * w0 + rms(z) * w1) * w2) * factor, w0 to w3 in a row.
//
// With DIGITS, one more workgroup rounds rms(x) * z for experts, or, if INPUT is 3, rms(h) * bias; without, such an h goes into y behind the results, as that of INPUT 5 does.
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
    // Of the whole product.
    blocks: u32,
    eps: f32,
    width: u32,
    // Workgroups of the product, where digits or h begin in y, and bits of the weights they are for.
    groups: u32,
    digits_at: u32,
    digit_bits: u32,
    // Of an input in splits.
    splits: u32,
    // Of INPUT 5.
    factor: f32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> w: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> z: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> bias: array<f32>;
@group(0) @binding(6) var<storage, read> residual: array<f32>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;

const TEAMS: u32 = THREADS / LANES;
// Whether a norm's factor comes in the end.
const NORMED: bool = INPUT == 1u || INPUT == 3u || INPUT == 5u;
// Results of a team at a time.
const RESULTS: u32 = (ROWS + GATED) / (1u + GATED);

// What this thread has loaded, and the sum of its squares.
var<private> raw: array<Eight, EACH>;
var<private> raw_w: array<Eight, EACH>;
var<private> raw_z: array<Eight, EACH>;
var<private> raw_r: array<Eight, EACH>;
var<private> first_inverse: f32;
// Of INPUT 5: the other norms of what leads to h.
var<private> raw_w1: array<Eight, EACH>;
var<private> raw_w2: array<Eight, EACH>;
var<private> raw_w3: array<Eight, EACH>;
// Of an input in splits: values of each, and the largest scores and the sums of all.
var<private> raw_splits: array<Eight, select(1u, 4u * EACH, INPUT == 4u)>;
var<private> raw_maxima: array<vec4<f32>, EACH>;
var<private> raw_sums: array<vec4<f32>, EACH>;
var<private> squares: vec2<f32>;
// With slices: of each eight.
var<workgroup> eight_squares: array<f32, 1u + select(0u, 4u * ROOM, INPUT == 2u)>;

fn silu4(v: vec4<f32>) -> vec4<f32> {
    return vec4(silu(v.x), silu(v.y), silu(v.z), silu(v.w));
}

fn raw8(e: u32) -> Eight {
    return Eight(x[ready(2u * e)], x[ready(2u * e + 1u)]);
}

fn four_of_residual(first: u32) -> vec4<f32> {
    let at = ready(first);
    return vec4(residual[at], residual[at + 1u], residual[at + 2u], residual[at + 3u]);
}

// What is rounded for experts, but for the norm's factor.
fn digit8(e: u32) -> Eight {
    let v = raw8(e);
    if INPUT == 3u {
        let a = four_of_residual(8u * e) + v.a * first_inverse * w[2u * e];
        return Eight(a, four_of_residual(8u * e + 4u) + v.b * first_inverse * w[2u * e + 1u]);
    }
    return v;
}

fn digit_weight8(e: u32) -> Eight {
    if INPUT == 3u {
        let c = 8u * e;
        let a = vec4(bias[c], bias[c + 1u], bias[c + 2u], bias[c + 3u]);
        return Eight(a, vec4(bias[c + 4u], bias[c + 5u], bias[c + 6u], bias[c + 7u]));
    }
    return Eight(z[2u * e], z[2u * e + 1u]);
}

fn norm8(e: u32) -> Eight {
    return Eight(w[2u * e], w[2u * e + 1u]);
}

fn load_norm8(n: u32, e: u32) {
    if INPUT == 5u {
        raw_w[n] = norm8(e);
        raw_w1[n] = norm8(params.eights + e);
        raw_w2[n] = norm8(2u * params.eights + e);
        raw_w3[n] = norm8(3u * params.eights + e);
        return;
    }
    if NORMED {
        raw_w[n] = Eight(w[2u * e], w[2u * e + 1u]);
    }
    if INPUT == 2u {
        let c = 2u * e % (params.width / 4u);
        raw_w[n] = Eight(w[c], w[c + 1u]);
    }
    if INPUT == 3u {
        raw_z[n] = Eight(z[2u * e], z[2u * e + 1u]);
    }
}

fn load8(n: u32, e: u32) {
    if INPUT == 4u {
        let stats = 8u * params.eights + 2u * (8u * e / params.width);
        raw_maxima[n] = x[ready(stats)];
        raw_sums[n] = x[ready(stats + 1u)];
        for (var s = 0u; s < 4u; s++) {
            raw_splits[4u * n + s] = raw8(min(s, params.splits - 1u) * params.eights + e);
        }
        return;
    }
    raw[n] = raw8(e);
    if INPUT == 2u || INPUT == 5u {
        raw_z[n] = Eight(z[ready(2u * e)], z[ready(2u * e + 1u)]);
    }
    if INPUT == 3u || INPUT == 5u {
        raw_r[n] = Eight(four_of_residual(8u * e), four_of_residual(8u * e + 4u));
    }
}

// The sum of squares of what this thread has loaded of `count` groups.
fn raw_squares(count: u32, place: Place) -> vec2<f32> {
    var sum = vec2(0.0);
    for (var n = 0u; n < EACH; n++) {
        sum += select(vec2(0.0), squares_of8(raw[n].a, raw[n].b), n * THREADS + index_of(place) < 4u * count);
    }
    return sum;
}

fn write_h(local: u32, h: Eight) {
    for (var i = 0u; i < 4u; i++) {
        y[params.digits_at + 8u * local + i] = h.a[i];
        y[params.digits_at + 8u * local + 4u + i] = h.b[i];
    }
}

// Of INPUT 5: what has been loaded becomes h.
fn make_h(count: u32, place: Place) {
    var squares_of_both = vec4(0.0);
    for (var n = 0u; n < EACH; n++) {
        let real = n * THREADS + index_of(place) < 4u * count;
        let both = vec4(squares_of8(raw[n].a, raw[n].b), squares_of8(raw_z[n].a, raw_z[n].b));
        squares_of_both += select(vec4(0.0), both, real);
    }
    let sums = workgroup_sum4(squares_of_both, place);
    let one = inverse_of(sums.xy, params.cols, params.eps);
    let other = inverse_of(sums.zw, params.cols, params.eps);
    for (var n = 0u; n < EACH; n++) {
        let a = raw[n].a * one * raw_w[n].a + raw_z[n].a * other * raw_w1[n].a;
        raw[n] = Eight(a, raw[n].b * one * raw_w[n].b + raw_z[n].b * other * raw_w1[n].b);
    }
    let inverse = inverse_rms(raw_squares(count, place), params.cols, params.eps, place);
    for (var n = 0u; n < EACH; n++) {
        let a = (raw_r[n].a + raw[n].a * inverse * raw_w2[n].a) * params.factor;
        raw[n] = Eight(a, (raw_r[n].b + raw[n].b * inverse * raw_w2[n].b) * params.factor);
    }
}

// Eight values of an input in splits.
fn together8(n: u32) -> Eight {
    let there = vec4(0u, 1u, 2u, 3u) < vec4(params.splits);
    let maxima = select(vec4(LOWEST), raw_maxima[n], there);
    let largest = max(max(maxima.x, maxima.y), max(maxima.z, maxima.w));
    var shares = select(vec4(0.0), exp(maxima - largest), there);
    shares /= dot(shares, select(vec4(0.0), raw_sums[n], there));
    var v = Eight(vec4(0.0), vec4(0.0));
    for (var s = 0u; s < 4u; s++) {
        v.a += shares[s] * raw_splits[4u * n + s].a;
        v.b += shares[s] * raw_splits[4u * n + s].b;
    }
    return v;
}

fn made8(n: u32, local: u32, real: bool, place: Place) -> Eight {
    if INPUT == 4u {
        return together8(n);
    }
    let v = raw[n];
    if INPUT == 0u {
        return v;
    }
    if INPUT == 1u {
        squares += select(vec2(0.0), squares_of8(v.a, v.b), real);
        return Eight(v.a * raw_w[n].a, v.b * raw_w[n].b);
    }
    if INPUT == 3u {
        let h = Eight(raw_r[n].a + v.a * first_inverse * raw_w[n].a, raw_r[n].b + v.b * first_inverse * raw_w[n].b);
        squares += select(vec2(0.0), squares_of8(h.a, h.b), real);
        if DIGITS == 0u && real && folded(place) == 0u {
            write_h(local, h);
        }
        return Eight(h.a * raw_z[n].a, h.b * raw_z[n].b);
    }
    if INPUT == 5u {
        squares += select(vec2(0.0), squares_of8(v.a, v.b), real);
        if real && folded(place) == 0u {
            write_h(local, v);
        }
        return Eight(v.a * raw_w3[n].a, v.b * raw_w3[n].b);
    }
    if local < 4u * ROOM {
        eight_squares[local] = dot(v.a, v.a) + dot(v.b, v.b);
    }
    return Eight(v.a * raw_w[n].a * silu4(raw_z[n].a), v.b * raw_w[n].b * silu4(raw_z[n].b));
}

fn group_factor(group: u32) -> f32 {
    if INPUT != 2u {
        return 1.0;
    }
    let slice = params.width / 8u;
    let begin = 4u * (group % ROOM) / slice * slice;
    var sum = 0.0;
    for (var i = 0u; i < slice; i++) {
        sum += eight_squares[begin + i];
    }
    return 1.0 / sqrt(sum / f32(params.width) + params.eps);
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
                biases[r] = bias[params.has_bias * (params.first + min(result + r, params.rows - 1u))];
            }
            if CHAINED && block == begin && start == 0u {
                wait_for_inputs(place);
                load_input(0u, count, place);
            }
            for (var r = 0u; r < RESULTS; r++) {
                residuals[r] = residual[ready(params.has_residual * (params.first + min(result + r, params.rows - 1u)))];
            }
            if LONG == 1u || block == begin {
                // All blocks have the same input: one that there is room for is prepared once.
                if INPUT == 3u {
                    first_inverse = inverse_rms(raw_squares(count, place), params.cols, params.eps, place);
                }
                if INPUT == 5u {
                    make_h(count, place);
                }
                make_input(count, place);
                if INPUT == 2u {
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
    if DIGITS == 1u && folded(place) == params.groups {
        wait_for_inputs(place);
        if INPUT == 3u {
            var sum = vec2(0.0);
            for (var e = index_of(place); e < params.eights; e += THREADS) {
                let v = raw8(e);
                sum += squares_of8(v.a, v.b);
            }
            first_inverse = inverse_rms(sum, params.cols, params.eps, place);
        }
        write_digits(place);
    } else {
        product(place);
    }
    announce(place);
}
