// LANES threads that share rows.
var<workgroup> lane_values: array<f32, THREADS>;

fn lane_of(place: Place) -> u32 {
    return place.thread % LANES;
}

fn team_of(place: Place) -> u32 {
    return place.thread / LANES;
}

// The sum over a team, for all of it. All threads of the workgroup must call it.
fn team_sum(value: f32, place: Place) -> f32 {
    lane_values[place.thread] = value;
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < LANES; i++) {
        sum += lane_values[place.thread / LANES * LANES + i];
    }
    // Nobody may begin the next sum before all have read this one.
    workgroupBarrier();
    return sum;
}
