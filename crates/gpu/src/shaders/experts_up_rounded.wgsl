// Routing of one token, and its chosen experts' gate and up: for slot k and the expert e chosen k-th, h[k, r] = act(Wgate_e[r] . x) *
// (Wup_e[r] . x), x = rms(input) * w rounded; rows of gate and up alternate. The last slot may be the shared expert's. Every workgroup chooses
// for itself; one of them writes what the next kernel has to know.
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
    // 0 softmax; 1 sigmoid, `per_expert` added for the choice; 2 softmax, `per_expert` a factor on the weight.
    kind: u32,
    renormalise: u32,
    scaling: f32,
    // Whether the shared expert is weighted by the logit behind the experts', and where that is.
    gated: u32,
    gate_at: u32,
    eps: f32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> w: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> logits: array<f32>;
@group(0) @binding(5) var<storage, read> per_expert: array<f32>;
@group(0) @binding(6) var<storage, read_write> h: array<f32>;
// Experts of the slots, then the bits of their weights.
@group(0) @binding(7) var<storage, read_write> routes: array<u32>;

const TEAMS: u32 = THREADS / LANES;

var<private> squares: vec2<f32>;

fn input8(e: u32, local: u32) -> Eight {
    let v = Eight(x[2u * e], x[2u * e + 1u]);
    squares += squares_of8(v.a, v.b);
    return Eight(v.a * w[2u * e], v.b * w[2u * e + 1u]);
}

fn group_factor(group: u32) -> f32 {
    return 1.0;
}

// What is not a number comes after all others.
fn expert_key(e: u32) -> u32 {
    if params.kind == 1u {
        return max(key_of(sigmoid(logits[e]) + per_expert[e], 1u), 1u);
    }
    return max(key_of(logits[e], 1u), 1u);
}

// What an expert weighs, but for what is common to all.
fn share_of(e: u32, largest: f32) -> f32 {
    if params.kind == 1u {
        return sigmoid(logits[e]);
    }
    return exp(logits[e] - largest);
}

// All threads of the workgroup must call it.
fn write_routes(place: Place) {
    let largest = logits[chosen[0]];
    var sum = 0.0;
    if params.kind != 1u && params.renormalise == 0u {
        var own = 0.0;
        for (var e = place.thread; e < params.experts; e += THREADS) {
            own += share_of(e, largest);
        }
        sum = workgroup_sum(vec2(own, 0.0), place).x;
    } else if params.renormalise != 0u {
        for (var k = 0u; k < params.top_k; k++) {
            sum += share_of(chosen[k], largest);
        }
        if params.kind == 1u {
            // The crumb keeps sigmoids that have all underflowed at zero.
            sum += 1e-20;
        }
    } else {
        sum = 1.0;
    }
    if place.thread < params.top_k {
        let e = chosen[place.thread];
        routes[place.thread] = e;
        var weight = share_of(e, largest) / sum * params.scaling;
        if params.kind == 2u {
            weight *= per_expert[e];
        }
        routes[params.slots + place.thread] = bitcast<u32>(weight);
    } else if place.thread < params.slots {
        routes[place.thread] = params.experts;
        routes[params.slots + place.thread] = bitcast<u32>(select(1.0, sigmoid(logits[params.gate_at]), params.gated != 0u));
    }
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let lane = lane_of(place);
    let slot = place.workgroup.y;
    let first = (place.workgroup.x * TEAMS + team_of(place)) * ROWS;
    let groups = params.eights / 4u;
    // Asked for early: it is needed soon.
    load_input(0u, min(ROOM, groups), place);
    var expert = params.experts;
    if slot < params.top_k {
        choose(params.experts, params.top_k, place);
        expert = chosen[slot];
        if place.workgroup.x == 0u && slot == 0u {
            write_routes(place);
        }
    }
    var sums: array<f32, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        sums[r] = 0.0;
    }
    for (var start = 0u; start < groups; start += ROOM) {
        let count = min(ROOM, groups - start);
        if start > 0u {
            load_input(start, count, place);
        }
        var held: array<Codes, ROWS * STEPS>;
        var pairs: array<vec2<f32>, ROWS * STEPS>;
        for (var step = 0u; step < STEPS; step++) {
            let group = step * LANES + lane;
            if group < count {
                for (var r = 0u; r < ROWS; r++) {
                    let row = expert * params.expert_rows + min(first + r, params.expert_rows - 1u);
                    held[step * ROWS + r] = codes32(row, start + group);
                    pairs[step * ROWS + r] = scale(row, 4u * (start + group));
                }
            }
        }
        round_input(start, count, place);
        publish_sum(squares, place);
        workgroupBarrier();
        for (var step = 0u; step < STEPS; step++) {
            let group = step * LANES + lane;
            if group < count {
                let input = digits_of(group);
                for (var r = 0u; r < ROWS; r++) {
                    sums[r] += group_product(held[step * ROWS + r], pairs[step * ROWS + r], input, group);
                }
            }
        }
        if groups > ROOM {
            workgroupBarrier();
        }
    }
    let factor = inverse_of(published_sum(place), params.cols, params.eps);
    for (var r = 0u; r < ROWS; r++) {
        sums[r] = factor * team_sum(sums[r], place);
    }
    if lane == 0u {
        for (var r = 0u; r < ROWS; r += 2u) {
            if first + r < params.expert_rows {
                h[(slot * params.expert_rows + first + r) / 2u] = activate(sums[r]) * sums[r + 1u];
            }
        }
    }
}
