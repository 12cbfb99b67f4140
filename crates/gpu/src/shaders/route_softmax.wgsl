// The `top_k` largest logits of a token, best first, and their weights: a softmax over the chosen ones, or over all; times a
// factor per expert. One token per workgroup. Chosen experts need not be marked: the next is the best of those that come
// after the last.
struct Params {
    tokens: u32,
    experts: u32,
    top_k: u32,
    renormalise: u32,
    has_factors: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> factors: array<f32>;
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> weights: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let token = folded(place);
    if token >= params.tokens {
        return;
    }
    let start = token * params.experts;
    var last = Candidate(0u, NOBODY);
    var largest = 0.0;
    var sum = 0.0;
    for (var k = 0u; k < params.top_k; k++) {
        var own = Candidate(0u, NOBODY);
        for (var e = place.thread; e < params.experts; e += THREADS) {
            // What is not a number comes after all others.
            let candidate = Candidate(key_of(logits[start + e], 0u), e);
            if (k == 0u || before(last, candidate)) && before(candidate, own) {
                own = candidate;
            }
        }
        last = workgroup_best(own, place);
        if k == 0u {
            largest = value_of(last.key);
        }
        let weight = exp(value_of(last.key) - largest);
        sum += weight;
        if place.thread == 0u {
            ids[token * params.top_k + k] = last.index;
            weights[token * params.top_k + k] = weight;
        }
    }
    if params.renormalise == 0u {
        var own = 0.0;
        for (var e = place.thread; e < params.experts; e += THREADS) {
            own += exp(logits[start + e] - largest);
        }
        sum = workgroup_sum(vec2(own, 0.0), place).x;
    }
    // The weights were written by one thread: it alone reads them again.
    if place.thread == 0u {
        for (var k = 0u; k < params.top_k; k++) {
            let at = token * params.top_k + k;
            var weight = weights[at] / sum;
            if params.has_factors != 0u {
                weight *= factors[ids[at]];
            }
            weights[at] = weight;
        }
    }
}
