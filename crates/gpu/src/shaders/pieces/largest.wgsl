fn logit_of(row: u32, token: u32, choice: Choice) -> f32 {
    if choice.adjusted == NOBODY {
        return x[row * params.cols + token];
    }
    return adjusted[choice.adjusted * params.cols + token];
}

// The largest of a row's adjusted logits. All threads of the workgroup must call it. `work_at` is the kernel's own.
fn row_largest(row: u32, place: Place) -> Candidate {
    var own = Candidate(0u, NOBODY);
    for (var block = place.thread; block < params.blocks; block += THREADS) {
        let at = largest_at(row, block);
        let found = Candidate(work_at(at), work_at(at + 1u));
        if before(found, own) {
            own = found;
        }
    }
    return workgroup_best(own, place);
}
