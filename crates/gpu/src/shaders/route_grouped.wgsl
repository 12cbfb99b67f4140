// p = sigmoid(logits); the `top_k` largest p + bias, of the `kept` groups with the largest sums of their two best; weights
// are the p of the chosen, normalised, times `scaling`. One token per workgroup. Groups and experts count those that come before
// them: that is their place.
struct Params {
    tokens: u32,
    experts: u32,
    top_k: u32,
    groups: u32,
    kept: u32,
    renormalise: u32,
    scaling: f32,
    // As in route_softmax.
    row: u32,
    slots: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> bias: array<f32>;
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> weights: array<f32>;
// [token][group]: the sum of a group's two best, then its rank.
@group(0) @binding(4) var<storage, read_write> group_scores: array<f32>;
@group(0) @binding(5) var<storage, read_write> group_ranks: array<u32>;

fn score(start: u32, e: u32) -> f32 {
    return sigmoid(logits[start + e]) + bias[e];
}

// Experts of groups that are out come last, behind what is not a number.
fn expert_key(token: u32, e: u32) -> u32 {
    let group = e / (params.experts / params.groups);
    let kept = params.groups == 1u || group_ranks[token * params.groups + group] < params.kept;
    return select(0u, max(key_of(score(token * params.row, e), 1u), 1u), kept);
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let token = folded(place);
    if token >= params.tokens {
        return;
    }
    let start = token * params.row;
    let size = params.experts / params.groups;
    let first_group = token * params.groups;
    if params.groups > 1u {
        for (var g = place.thread; g < params.groups; g += THREADS) {
            var best = LOWEST;
            var second = LOWEST;
            for (var e = g * size; e < (g + 1u) * size; e++) {
                let s = score(start, e);
                second = max(second, min(best, s));
                best = max(best, s);
            }
            group_scores[first_group + g] = best + second;
        }
        storageBarrier();
        workgroupBarrier();
        for (var g = place.thread; g < params.groups; g += THREADS) {
            let own = Candidate(key_of(group_scores[first_group + g], 0u), g);
            var rank = 0u;
            for (var other = 0u; other < params.groups; other++) {
                if before(Candidate(key_of(group_scores[first_group + other], 0u), other), own) {
                    rank++;
                }
            }
            group_ranks[first_group + g] = rank;
        }
        storageBarrier();
        workgroupBarrier();
    }
    for (var first = 0u; first < params.experts; first += THREADS) {
        let e = first + place.thread;
        let own = expert_key(token, min(e, params.experts - 1u));
        let rank = rank_of(token, e, own, params.experts, place);
        if e < params.experts && own > 0u && rank < params.top_k {
            ids[token * params.slots + rank] = e;
        }
    }
    storageBarrier();
    workgroupBarrier();
    if place.thread == 0u {
        var sum = 0.0;
        for (var k = 0u; k < params.top_k; k++) {
            sum += sigmoid(logits[start + ids[token * params.slots + k]]);
        }
        // The crumb keeps sigmoids that have all underflowed at zero.
        let factor = params.scaling / select(1.0, sum + 1e-20, params.renormalise != 0u);
        for (var k = 0u; k < params.top_k; k++) {
            let at = token * params.slots + k;
            weights[at] = sigmoid(logits[start + ids[at]]) * factor;
        }
        if params.slots > params.top_k {
            let at = token * params.slots + params.top_k;
            ids[at] = params.experts;
            weights[at] = select(1.0, sigmoid(logits[start + min(params.experts, params.row - 1u)]), params.row > params.experts);
        }
    }
}
