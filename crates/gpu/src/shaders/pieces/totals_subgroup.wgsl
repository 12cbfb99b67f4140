// Sums of TOTALS values of every thread at once.
var<private> totals: array<f32, TOTALS>;
// A subgroup has 4 threads or more.
var<workgroup> total_parts: array<f32, (THREADS + 3u) / 4u * TOTALS>;

// All threads of the workgroup must call it, once. Afterwards `total` has the sums.
fn publish_totals(place: Place) {
    for (var i = 0u; i < TOTALS; i++) {
        let part = subgroupAdd(totals[i]);
        if place.lane == 0u {
            total_parts[place.subgroup * TOTALS + i] = part;
        }
    }
    workgroupBarrier();
}

fn total(i: u32, place: Place) -> f32 {
    var sum = 0.0;
    for (var subgroup = 0u; subgroup < place.subgroups; subgroup++) {
        sum += total_parts[subgroup * TOTALS + i];
    }
    return sum;
}
