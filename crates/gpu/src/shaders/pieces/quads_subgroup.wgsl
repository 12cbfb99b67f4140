// Four neighbouring threads, within a subgroup.
fn index_of(place: Place) -> u32 {
    return place.subgroup * place.subgroup_size + place.lane;
}

// All threads of the workgroup must call these.
fn quad_max(value: u32, place: Place) -> u32 {
    let two = max(value, subgroupShuffleXor(value, 1u));
    return max(two, subgroupShuffleXor(two, 2u));
}

fn quad_sum(value: i32, place: Place) -> i32 {
    let two = value + subgroupShuffleXor(value, 1u);
    return two + subgroupShuffleXor(two, 2u);
}
