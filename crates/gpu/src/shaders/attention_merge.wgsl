// Puts the splits of attention together: some channels of one row of one head per workgroup, a channel to every PARTS threads.
struct Params {
    // Rows times heads of this sequence, and where they begin in y.
    rows: u32,
    first: u32,
    width: u32,
    splits: u32,
    // Columns from one head's gate to the next, and to the first; 0 for no gates.
    gate_stride: u32,
    gate_at: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

// [split][row][max, sum, values]
@group(0) @binding(0) var<storage, read> partial: array<f32>;
@group(0) @binding(1) var<storage, read> gates: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

const CHANNELS: u32 = 32u;
const PARTS: u32 = THREADS / CHANNELS;
// Splits that a thread loads at once.
const AHEAD: u32 = 8u;
// Threads whose largest one thread looks through.
const BUNCH: u32 = 16u;

// Sum of weights, sum of values.
var<workgroup> sums: array<vec2<f32>, THREADS>;
var<workgroup> largest_parts: array<f32, THREADS>;
var<workgroup> largest_bunches: array<f32, THREADS / BUNCH>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let row = place.workgroup.y + place.workgroup.z * place.grid.y;
    if row >= params.rows {
        return;
    }
    let stride = params.width + 2u;
    let channel = place.workgroup.x * CHANNELS + place.thread % CHANNELS;
    let own_channel = min(channel, params.width - 1u);
    let gate = gates[params.gate_stride * row + params.gate_at + select(0u, own_channel, params.gate_stride > 0u)];
    var own = LOWEST;
    for (var s = place.thread; s < params.splits; s += THREADS) {
        own = max(own, partial[(s * params.rows + row) * stride]);
    }
    largest_parts[place.thread] = own;
    workgroupBarrier();
    if place.thread < THREADS / BUNCH {
        var largest = LOWEST;
        for (var i = 0u; i < BUNCH; i++) {
            largest = max(largest, largest_parts[i * (THREADS / BUNCH) + place.thread]);
        }
        largest_bunches[place.thread] = largest;
    }
    workgroupBarrier();
    var largest = LOWEST;
    for (var i = 0u; i < THREADS / BUNCH; i++) {
        largest = max(largest, largest_bunches[i]);
    }
    var sum = vec2(0.0);
    for (var start = place.thread / CHANNELS; start < params.splits; start += PARTS * AHEAD) {
        var loaded: array<vec3<f32>, AHEAD>;
        for (var i = 0u; i < AHEAD; i++) {
            let at = (min(start + i * PARTS, params.splits - 1u) * params.rows + row) * stride;
            loaded[i] = vec3(partial[at], partial[at + 1u], partial[at + 2u + own_channel]);
        }
        for (var i = 0u; i < AHEAD; i++) {
            let weight = select(0.0, exp(loaded[i].x - largest), start + i * PARTS < params.splits);
            sum += weight * loaded[i].yz;
        }
    }
    sums[place.thread] = sum;
    workgroupBarrier();
    if place.thread < CHANNELS && channel < params.width {
        var all = vec2(0.0);
        for (var i = 0u; i < PARTS; i++) {
            all += sums[i * CHANNELS + place.thread];
        }
        var value = all.y / all.x;
        if params.gate_stride > 0u {
            value *= sigmoid(gate);
        }
        y[(params.first + row) * params.width + channel] = value;
    }
}
