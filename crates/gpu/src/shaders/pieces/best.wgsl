// The best of candidates, ties to the lower index.
struct Candidate {
    value: f32,
    index: u32,
}

const NOBODY: u32 = 0xffffffffu;

// Whether `a` comes before `b`. NOBODY comes last.
fn before(a: Candidate, b: Candidate) -> bool {
    if a.index == NOBODY || b.index == NOBODY {
        return b.index == NOBODY && a.index != NOBODY;
    }
    return a.value > b.value || (a.value == b.value && a.index < b.index);
}

var<workgroup> candidates: array<Candidate, THREADS>;

// The best candidate of all threads, for all of them. All threads of the workgroup must call it.
fn workgroup_best(own: Candidate, place: Place) -> Candidate {
    candidates[place.thread] = own;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if place.thread < half && before(candidates[place.thread + half], candidates[place.thread]) {
            candidates[place.thread] = candidates[place.thread + half];
        }
        workgroupBarrier();
    }
    let best = candidates[0];
    // Nobody may begin the next search before all have read this one's result.
    workgroupBarrier();
    return best;
}

// What a router compares: numbers that are none come after all others.
fn comparable(value: f32) -> f32 {
    return select(max(value, LOWEST), LOWEST, is_nan(value));
}
