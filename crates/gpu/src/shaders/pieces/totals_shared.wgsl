// Sums of TOTALS values of every thread at once.
var<private> totals: array<f32, TOTALS>;
var<workgroup> total_parts: array<f32, THREADS * TOTALS>;

// All threads of the workgroup must call it, once. Afterwards `total` has the sums.
fn publish_totals(place: Place) {
    for (var i = 0u; i < TOTALS; i++) {
        total_parts[place.thread * TOTALS + i] = totals[i];
    }
    workgroupBarrier();
}

fn total(i: u32, place: Place) -> f32 {
    var sum = 0.0;
    for (var thread = 0u; thread < THREADS; thread++) {
        sum += total_parts[thread * TOTALS + i];
    }
    return sum;
}
