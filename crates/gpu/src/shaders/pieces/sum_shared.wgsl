var<workgroup> sum_parts: array<vec2<f32>, THREADS>;

// The sums of every thread's two values, for all of them. All threads of the workgroup must call it.
fn workgroup_sum(value: vec2<f32>, place: Place) -> vec2<f32> {
    sum_parts[place.thread] = value;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if place.thread < half {
            sum_parts[place.thread] += sum_parts[place.thread + half];
        }
        workgroupBarrier();
    }
    let sum = sum_parts[0];
    // Nobody may begin the next sum before all have read this one.
    workgroupBarrier();
    return sum;
}
