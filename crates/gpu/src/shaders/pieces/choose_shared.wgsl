// The `top_k` best of `experts` logits, found by a whole workgroup. First every expert counts those of its block of 32 that come before
// it, then every block's best count those of all blocks' best, four threads together. Blocks times `top_k` are at most 256, which the
// kernel's caller sees to. Loops have fixed lengths, so that they do not wait for shared memory at every turn.
const BLOCK: u32 = 32u;
const MOST_CHOSEN: u32 = 32u;

var<workgroup> chosen: array<u32, MOST_CHOSEN>;
var<workgroup> expert_keys: array<u32, THREADS>;

// The expert of slot `slot`. `logits`, `has_biases()` and `with_bias(logit, e)` are the kernel's own. Uses what rounding uses later. All
// threads of the workgroup must call it.
fn choose(experts: u32, top_k: u32, slot: u32, place: Place) -> u32 {
    let candidates = (experts + BLOCK - 1u) / BLOCK * top_k;
    // Nobody's key is 0. Whole 64s are looked through.
    for (var i = place.thread; i < 256u; i += THREADS) {
        digits[i] = vec4(0u);
    }
    for (var first = 0u; first < experts; first += THREADS) {
        let e = first + place.thread;
        var own = 0u;
        if e < experts {
            var score = logits[ready(e)];
            if has_biases() {
                score = with_bias(score, e);
            }
            // What is not a number comes after all others.
            own = max(key_of(score, 1u), 1u);
        }
        expert_keys[place.thread] = own;
        workgroupBarrier();
        let begin = place.thread / BLOCK * BLOCK;
        var rank = 0u;
        for (var i = 0u; i < BLOCK; i++) {
            let key = expert_keys[begin + i];
            rank += u32(key > own || (key == own && begin + i < place.thread));
        }
        if own > 0u && rank < top_k {
            digits[e / BLOCK * top_k + rank] = vec4(own, e, 0u, 0u);
        }
        workgroupBarrier();
    }
    for (var first = 0u; first < candidates; first += THREADS / 4u) {
        let index = index_of(place);
        let own = digits[min(first + index / 4u, 255u)];
        var before = 0;
        for (var others = 0u; others < candidates; others += 64u) {
            for (var i = 0u; i < 16u; i++) {
                let other = digits[others + 4u * i + index % 4u];
                before += i32(other.x > own.x || (other.x == own.x && other.y < own.y));
            }
        }
        let rank = u32(quad_sum(before, place));
        if own.x > 0u && rank < top_k && index % 4u == 0u {
            chosen[rank] = own.y;
        }
    }
    workgroupBarrier();
    return chosen[slot];
}

// The expert chosen in place `k`, the thread's own, after as many were chosen.
fn chosen_by(k: u32, place: Place) -> u32 {
    return chosen[k];
}

fn best_chosen(place: Place) -> u32 {
    return chosen[0];
}
