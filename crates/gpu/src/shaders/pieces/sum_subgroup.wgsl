// A subgroup has 4 threads or more.
var<workgroup> sum_parts: array<vec2<f32>, (THREADS + 3u) / 4u>;

// The sums of every thread's two values, for all of them. All threads of the workgroup must call it.
fn workgroup_sum(value: vec2<f32>, place: Place) -> vec2<f32> {
    let part = subgroupAdd(value);
    if place.lane == 0u {
        sum_parts[place.subgroup] = part;
    }
    workgroupBarrier();
    var sum = vec2(0.0);
    for (var i = 0u; i < place.subgroups; i++) {
        sum += sum_parts[i];
    }
    // Nobody may begin the next sum before all have read this one.
    workgroupBarrier();
    return sum;
}
