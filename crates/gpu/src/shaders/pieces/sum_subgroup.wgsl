// A subgroup has 4 threads or more.
var<workgroup> sum_parts: array<vec2<f32>, (THREADS + 3u) / 4u>;
var<workgroup> more_parts: array<vec2<f32>, (THREADS + 3u) / 4u>;

// The sums of every thread's two values in two halves, between which all threads have to wait for each other. All threads of the workgroup
// must call the first.
fn publish_sum(value: vec2<f32>, place: Place) {
    let part = subgroupAdd(value);
    if place.lane == 0u {
        sum_parts[place.subgroup] = part;
    }
}

fn published_sum(place: Place) -> vec2<f32> {
    return published_part(0u, 1u, place);
}

// The sums of every thread's two values, for all of them. All threads of the workgroup must call it.
fn workgroup_sum(value: vec2<f32>, place: Place) -> vec2<f32> {
    publish_sum(value, place);
    workgroupBarrier();
    let sum = published_sum(place);
    // Nobody may begin the next sum before all have read this one.
    workgroupBarrier();
    return sum;
}

// The sums of every thread's four values, for all of them. All threads of the workgroup must call it.
fn workgroup_sum4(value: vec4<f32>, place: Place) -> vec4<f32> {
    let part = subgroupAdd(value);
    if place.lane == 0u {
        sum_parts[place.subgroup] = part.xy;
        more_parts[place.subgroup] = part.zw;
    }
    workgroupBarrier();
    var sum = vec4(0.0);
    for (var i = 0u; i < place.subgroups; i++) {
        sum += vec4(sum_parts[i], more_parts[i]);
    }
    workgroupBarrier();
    return sum;
}

// The sums of every thread's two values where subgroups are many: those of each share the parts, instead of adding up all of them.
fn workgroup_sum_of_many(value: vec2<f32>, place: Place) -> vec2<f32> {
    publish_sum(value, place);
    workgroupBarrier();
    var sum = vec2(0.0);
    for (var i = place.lane; i < place.subgroups; i += place.subgroup_size) {
        sum += sum_parts[i];
    }
    // Nobody may begin the next sum before all have read this one.
    workgroupBarrier();
    return subgroupAdd(sum);
}

// Between the two: the sum of one of `parts` equal parts of the workgroup. No subgroup has threads of two parts.
fn published_part(part: u32, parts: u32, place: Place) -> vec2<f32> {
    let each = place.subgroups / parts;
    var sum = vec2(0.0);
    for (var i = part * each; i < (part + 1u) * each; i++) {
        sum += sum_parts[i];
    }
    return sum;
}
