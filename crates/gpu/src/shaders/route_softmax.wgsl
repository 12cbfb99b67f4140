// The `top_k` largest logits of a token, best first, and their weights: a softmax over the chosen ones, or over all; times a
// factor per expert. One token per workgroup. Every expert counts those that come before it: that is its place, and nobody
// waits for another's.
struct Params {
    tokens: u32,
    experts: u32,
    top_k: u32,
    renormalise: u32,
    has_factors: u32,
    // Logits of a token, and slots: one more than `top_k` with a shared expert, which is weighted by the logit behind the others if
    // there is one.
    row: u32,
    slots: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> factors: array<f32>;
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> weights: array<f32>;

// What is not a number comes after all others.
fn expert_key(token: u32, e: u32) -> u32 {
    return key_of(logits[token * params.row + e], 0u);
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let token = folded(place);
    if token >= params.tokens {
        return;
    }
    let start = token * params.row;
    for (var first = 0u; first < params.experts; first += THREADS) {
        let e = first + place.thread;
        let rank = rank_of(token, e, expert_key(token, min(e, params.experts - 1u)), params.experts, place);
        if e < params.experts && rank < params.top_k {
            ids[token * params.slots + rank] = e;
        }
    }
    storageBarrier();
    workgroupBarrier();
    let largest = logits[start + ids[token * params.slots]];
    var sum = 0.0;
    if params.renormalise == 0u {
        var own = 0.0;
        for (var e = place.thread; e < params.experts; e += THREADS) {
            own += exp(logits[start + e] - largest);
        }
        sum = workgroup_sum(vec2(own, 0.0), place).x;
    }
    if place.thread == 0u {
        if params.renormalise != 0u {
            for (var k = 0u; k < params.top_k; k++) {
                sum += exp(logits[start + ids[token * params.slots + k]] - largest);
            }
        }
        for (var k = 0u; k < params.top_k; k++) {
            let at = token * params.slots + k;
            var weight = exp(logits[start + ids[at]] - largest) / sum;
            if params.has_factors != 0u {
                weight *= factors[ids[at]];
            }
            weights[at] = weight;
        }
        if params.slots > params.top_k {
            let at = token * params.slots + params.top_k;
            ids[at] = params.experts;
            weights[at] = select(1.0, sigmoid(logits[start + min(params.experts, params.row - 1u)]), params.row > params.experts);
        }
    }
}
