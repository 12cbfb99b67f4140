// Routing of one token, and its chosen experts' gate and up: for slot k and the expert e chosen k-th, h[k, r] = act(Wgate_e[r] . x) *
// (Wup_e[r] . x), x being rounded already; rows of gate and up alternate. The last slot may be the shared expert's. Every workgroup chooses
// for itself; one that does nothing else writes what the next kernel has to know. The results are rounded, too, in groups of 16.
struct Params {
    row_words: u32,
    row_scales: u32,
    cols: u32,
    eights: u32,
    // Rows of one expert, gate and up.
    expert_rows: u32,
    experts: u32,
    top_k: u32,
    // Chosen experts and the shared one.
    slots: u32,
    // 0 softmax; 1 sigmoid, `choice_bias` added for the choice; 2 softmax, `expert_scale` a factor on the weight.
    kind: u32,
    renormalise: u32,
    scaling: f32,
    // Whether the shared expert is weighted by the logit behind the experts', and where that is.
    gated: u32,
    gate_at: u32,
    // Workgroups of a slot, each with BLOCKS blocks of rows. There is one more; the first slot's writes the routes.
    groups: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

// Digits of every eight inputs; behind those of all, the scales and the sums of every two groups.
@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> logits: array<f32>;
@group(0) @binding(4) var<storage, read> choice_bias: array<f32>;
@group(0) @binding(5) var<storage, read> expert_scale: array<f32>;
// High and low digits of every eight results; behind those of all slots, the scale and the sum of every sixteen.
@group(0) @binding(6) var<storage, read_write> h: array<vec2<u32>>;
// Experts of the slots, then the bits of their weights.
@group(0) @binding(7) var<storage, read_write> routes: array<u32>;

const TEAMS: u32 = THREADS / LANES;
// Results of a block.
const RESULTS: u32 = TEAMS * ROWS / 2u;

// What this thread has loaded of the input: digits, and scales and sums of two groups.
var<private> raw: array<vec4<u32>, EACH>;
var<private> raw_scales: vec4<u32>;
var<workgroup> results: array<f32, RESULTS>;

// Asks for groups `first .. first + count` of the input.
fn load_digits(first: u32, count: u32, place: Place) {
    for (var n = 0u; n < EACH; n++) {
        raw[n] = x[ready(4u * first + min(n * THREADS + place.thread, 4u * count - 1u))];
    }
    raw_scales = x[ready(params.eights + min((first + 2u * place.thread) / 2u, params.eights / 8u))];
}

// Puts them where all threads find them, who then have to wait for each other. Groups beyond the last weigh nothing.
fn store_digits(count: u32, place: Place) {
    for (var n = 0u; n < EACH; n++) {
        let e = n * THREADS + place.thread;
        if e < 4u * ROOM {
            digits[place_of_eight(e)] = raw[n];
        }
    }
    if place.thread < ROOM / 2u {
        let group = 2u * place.thread;
        group_scales[group] = select(0.0, bitcast<f32>(raw_scales.x), group < count);
        group_scales[group + 1u] = select(0.0, bitcast<f32>(raw_scales.z), group + 1u < count);
        group_sums[group] = bitcast<i32>(raw_scales.y);
        group_sums[group + 1u] = bitcast<i32>(raw_scales.w);
    }
}

// Whether experts are chosen by what becomes of their logits together with biases, and what that is.
fn has_biases() -> bool {
    return params.kind == 1u;
}

fn with_bias(logit: f32, e: u32) -> f32 {
    return sigmoid(logit) + choice_bias[e];
}

// What an expert weighs, but for what is common to all.
fn share_of(e: u32, largest: f32) -> f32 {
    if params.kind == 1u {
        return sigmoid(logits[ready(e)]);
    }
    return exp(logits[ready(e)] - largest);
}

// All threads of the workgroup must call it.
fn write_routes(place: Place) {
    let k = index_of(place);
    let e = chosen_by(min(k, params.top_k - 1u), place);
    let largest = logits[ready(best_chosen(place))];
    let share = share_of(e, largest);
    var sum = 1.0;
    if params.renormalise != 0u {
        // The crumb keeps sigmoids that have all underflowed at zero.
        sum = workgroup_sum(vec2(select(0.0, share, k < params.top_k), 0.0), place).x + select(0.0, 1e-20, params.kind == 1u);
    } else if params.kind != 1u {
        var own = 0.0;
        for (var e = place.thread; e < params.experts; e += THREADS) {
            own += share_of(e, largest);
        }
        sum = workgroup_sum(vec2(own, 0.0), place).x;
    }
    if k < params.top_k {
        routes[k] = e;
        let weight = share / sum * params.scaling;
        routes[params.slots + k] = bitcast<u32>(select(weight, weight * expert_scale[e], params.kind == 2u));
    } else if k < params.slots {
        routes[k] = params.experts;
        routes[params.slots + k] = bitcast<u32>(select(1.0, sigmoid(logits[ready(params.gate_at)]), params.gated != 0u));
    }
}

// The results of a slot that are this workgroup's, the first part of the input having been asked for.
fn product(expert: u32, slot: u32, place: Place) {
    let lane = lane_of(place);
    let groups = params.eights / 4u;
    for (var block = 0u; block < BLOCKS; block++) {
        let first_of_block = (place.workgroup.x * BLOCKS + block) * TEAMS * ROWS;
        let first = first_of_block + team_of(place) * ROWS;
        var sums: array<f32, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            sums[r] = 0.0;
        }
        // One pass, unless the row is LONG.
        for (var start = 0u; start < select(1u, groups, LONG == 1u); start += ROOM) {
            let count = min(ROOM, groups - start);
            if LONG == 1u && (block > 0u || start > 0u) {
                load_digits(start, count, place);
            }
            var held: array<Codes, ROWS * STEPS>;
            var pairs: array<vec2<f32>, ROWS * STEPS>;
            for (var step = 0u; step < STEPS; step++) {
                let group = start + min(step * LANES + lane, count - 1u);
                for (var r = 0u; r < ROWS; r++) {
                    let row = expert * params.expert_rows + min(first + r, params.expert_rows - 1u);
                    held[step * ROWS + r] = codes32(row, group);
                    pairs[step * ROWS + r] = scale(row, 4u * group);
                }
            }
            if LONG == 1u || block == 0u {
                store_digits(count, place);
                workgroupBarrier();
            }
            for (var step = 0u; step < STEPS; step++) {
                let group = step * LANES + lane;
                let input = digits_of(group);
                for (var r = 0u; r < ROWS; r++) {
                    sums[r] += group_product(held[step * ROWS + r], pairs[step * ROWS + r], input, group);
                }
            }
            if LONG == 1u {
                workgroupBarrier();
            }
        }
        for (var r = 0u; r < ROWS; r++) {
            sums[r] = team_sum(sums[r], place);
        }
        if lane == 0u {
            for (var r = 0u; r < ROWS; r += 2u) {
                results[(team_of(place) * ROWS + r) / 2u] = activate(sums[r]) * sums[r + 1u];
            }
        }
        workgroupBarrier();
        write_results(slot, first_of_block / 2u, place);
        if BLOCKS > 1u {
            // Nobody may write the next ones before all have read these.
            workgroupBarrier();
        }
    }
}

// Rounds the results of a block, of which the slot's `first_result` is the first. Two of four neighbouring threads have a sixteen.
fn write_results(slot: u32, first_result: u32, place: Place) {
    let index = index_of(place);
    let sixteen = index / 4u;
    let whole = sixteen < RESULTS / 16u && index % 4u < 2u;
    let first = select(0u, 16u * sixteen + 8u * (index % 4u), whole);
    var v = Eight(vec4(0.0), vec4(0.0));
    if whole {
        v.a = vec4(results[first], results[first + 1u], results[first + 2u], results[first + 3u]);
        v.b = vec4(results[first + 4u], results[first + 5u], results[first + 6u], results[first + 7u]);
    }
    let rounded = rounded_eight(v, DOWN, place);
    // Half of the rows of an expert are results; they are whole sixteens.
    let width = params.expert_rows / 2u;
    let result = first_result + first;
    if whole && result < width {
        let eight = (slot * width + result) / 8u;
        h[2u * eight] = rounded.digits.xy;
        h[2u * eight + 1u] = rounded.digits.zw;
        if index % 4u == 0u {
            h[params.slots * width / 4u + eight / 2u] = vec2(bitcast<u32>(rounded.scale), bitcast<u32>(rounded.sum));
        }
    }
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let slot = place.workgroup.y;
    let multiplies = place.workgroup.x < params.groups;
    wait_for_inputs(place);
    // Asked for early: it is needed soon.
    load_digits(0u, min(ROOM, params.eights / 4u), place);
    var expert = params.experts;
    if slot < params.top_k {
        expert = choose(params.experts, select(params.top_k, slot + 1u, multiplies), slot, place);
    }
    if multiplies {
        product(expert, slot, place);
    } else if slot == 0u {
        write_routes(place);
    }
    announce(place);
}
