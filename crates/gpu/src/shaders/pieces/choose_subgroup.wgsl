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
    // The one that was chosen last: what comes behind it is left. Keys stay as they are: when those of the chosen were set to 0 instead, NVIDIA's compiler made
    // something else of 8 keys, and of 8 only.
    var last_key = 0xffffffffu;
    var last = NOBODY;
    for (var turn = 0u; turn < turns; turn++) {
        var own = 0u;
        var at = NOBODY;
        for (var i = 0u; i < KEYS; i++) {
            let index = i * place.subgroup_size + place.lane;
            let is_left = keys[i] < last_key || (keys[i] == last_key && index > last);
            let is_better = is_left && keys[i] > own;
            at = select(at, index, is_better);
            own = select(own, keys[i], is_better);
        }
        last_key = subgroupMax(own);
        last = subgroupMin(select(NOBODY, at, own == last_key));
        mine = select(mine, last, place.lane == turn);
        expert = select(expert, last, turn == slot);
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
