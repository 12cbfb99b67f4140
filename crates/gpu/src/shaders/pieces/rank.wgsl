// Places of experts: how many come before each. Keys go through shared memory, a workgroup's worth at a time. `expert_key(token, e)` is
// the kernel's own.
var<workgroup> rank_keys: array<u32, THREADS>;

// All threads of the workgroup must call it, with the same token and each with its own expert, or one beyond the last.
fn rank_of(token: u32, e: u32, own: u32, experts: u32, place: Place) -> u32 {
    var rank = 0u;
    for (var first = 0u; first < experts; first += THREADS) {
        // Nobody may still be reading the keys before.
        workgroupBarrier();
        if first + place.thread < experts {
            rank_keys[place.thread] = expert_key(token, first + place.thread);
        }
        workgroupBarrier();
        for (var i = 0u; i < min(THREADS, experts - first); i++) {
            let key = rank_keys[i];
            rank += u32(key > own || (key == own && first + i < e));
        }
    }
    return rank;
}
