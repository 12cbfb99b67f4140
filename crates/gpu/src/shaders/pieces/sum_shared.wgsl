var<workgroup> sum_parts: array<vec2<f32>, THREADS>;

// The sums of every thread's two values in two halves, between which all threads have to wait for each other.
fn publish_sum(value: vec2<f32>, place: Place) {
    sum_parts[place.thread] = value;
}

fn published_sum(place: Place) -> vec2<f32> {
    var sum = vec2(0.0);
    for (var i = 0u; i < THREADS; i++) {
        sum += sum_parts[i];
    }
    return sum;
}

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

fn workgroup_sum4(value: vec4<f32>, place: Place) -> vec4<f32> {
    return vec4(workgroup_sum(value.xy, place), workgroup_sum(value.zw, place));
}

fn published_part(part: u32, parts: u32, place: Place) -> vec2<f32> {
    let each = THREADS / parts;
    var sum = vec2(0.0);
    for (var i = part * each; i < (part + 1u) * each; i++) {
        sum += sum_parts[i];
    }
    return sum;
}
fn workgroup_sum_of_many(value: vec2<f32>, place: Place) -> vec2<f32> {
    return workgroup_sum(value, place);
}
