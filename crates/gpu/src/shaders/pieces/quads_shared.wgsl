// Four neighbouring threads.
var<workgroup> quad_values: array<u32, THREADS>;

fn index_of(place: Place) -> u32 {
    return place.thread;
}

// All threads of the workgroup must call these.
fn quad_max(value: u32, place: Place) -> u32 {
    quad_values[place.thread] = value;
    workgroupBarrier();
    let i = place.thread / 4u * 4u;
    let largest = max(max(quad_values[i], quad_values[i + 1u]), max(quad_values[i + 2u], quad_values[i + 3u]));
    workgroupBarrier();
    return largest;
}

fn quad_sum(value: i32, place: Place) -> i32 {
    quad_values[place.thread] = bitcast<u32>(value);
    workgroupBarrier();
    let i = place.thread / 4u * 4u;
    let sum = (quad_values[i] + quad_values[i + 1u]) + (quad_values[i + 2u] + quad_values[i + 3u]);
    workgroupBarrier();
    return bitcast<i32>(sum);
}
