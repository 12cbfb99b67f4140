// Four neighbouring threads.
var<workgroup> quad_values: array<f32, THREADS>;

fn index_of(place: Place) -> u32 {
    return place.thread;
}

// All threads of the workgroup must call these.
fn quad_max(value: f32, place: Place) -> f32 {
    quad_values[place.thread] = value;
    workgroupBarrier();
    let i = place.thread / 4u * 4u;
    let largest = max(max(quad_values[i], quad_values[i + 1u]), max(quad_values[i + 2u], quad_values[i + 3u]));
    workgroupBarrier();
    return largest;
}

// Of numbers below 2^24.
fn quad_sum(value: i32, place: Place) -> i32 {
    quad_values[place.thread] = f32(value);
    workgroupBarrier();
    let i = place.thread / 4u * 4u;
    let sum = (quad_values[i] + quad_values[i + 1u]) + (quad_values[i + 2u] + quad_values[i + 3u]);
    workgroupBarrier();
    return i32(sum);
}
