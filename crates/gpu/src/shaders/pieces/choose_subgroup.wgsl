// The best of `experts` logits, found by every subgroup for itself: each thread has KEYS of them, and in every turn all look for the best that
// is left. A subgroup has 32 threads or more.
var<private> mine: u32;

// The expert of slot `slot`: after `slot` turns and one more it is known. `logits`, `has_biases()` and `with_bias(logit, e)` are the
// kernel's own. All threads of the workgroup must call it.
fn choose(experts: u32, turns: u32, slot: u32, place: Place) -> u32 {
    var scores: array<f32, KEYS>;
    for (var i = 0u; i < KEYS; i++) {
        scores[i] = logits[ready(min(i * place.subgroup_size + place.lane, experts - 1u))];
    }
    if has_biases() {
        for (var i = 0u; i < KEYS; i++) {
            scores[i] = with_bias(scores[i], min(i * place.subgroup_size + place.lane, experts - 1u));
        }
    }
    // What is not a number comes after all others, and nobody's key is 0.
    var keys: array<u32, KEYS>;
    for (var i = 0u; i < KEYS; i++) {
        keys[i] = select(0u, max(key_of(scores[i], 1u), 1u), i * place.subgroup_size + place.lane < experts);
    }
    mine = 0u;
    var expert = 0u;
    for (var turn = 0u; turn < turns; turn++) {
        var own = keys[0];
        var at = 0u;
        for (var i = 1u; i < KEYS; i++) {
            at = select(at, i, keys[i] > own);
            own = max(own, keys[i]);
        }
        let best = subgroupMax(own);
        let index = subgroupMin(select(NOBODY, at * place.subgroup_size + place.lane, own == best));
        mine = select(mine, index, place.lane == turn);
        expert = select(expert, index, turn == slot);
        for (var i = 0u; i < KEYS; i++) {
            keys[i] = select(keys[i], 0u, i * place.subgroup_size + place.lane == index);
        }
    }
    return expert;
}

// The expert chosen in place `k`, the thread's own, after as many were chosen.
fn chosen_by(k: u32, place: Place) -> u32 {
    return mine;
}

fn best_chosen(place: Place) -> u32 {
    return subgroupShuffle(mine, 0u);
}
