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
