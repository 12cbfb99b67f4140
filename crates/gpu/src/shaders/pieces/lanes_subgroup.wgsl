// LANES threads that share rows, within a subgroup.
fn lane_of(place: Place) -> u32 {
    return place.lane % LANES;
}

fn team_of(place: Place) -> u32 {
    return (place.subgroup * place.subgroup_size + place.lane) / LANES;
}

// The sum over a team, for all of it. All threads of the workgroup must call it.
fn team_sum(value: f32, place: Place) -> f32 {
    var sum = value;
    for (var distance = LANES / 2u; distance > 0u; distance /= 2u) {
        sum += subgroupShuffleXor(sum, distance);
    }
    return sum;
}
