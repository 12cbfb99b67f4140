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

// Sum of weights, sum of values.
var<workgroup> sums: array<vec2<f32>, THREADS>;
var<workgroup> largest_parts: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let row = place.workgroup.y + place.workgroup.z * place.grid.y;
    if row >= params.rows {
        return;
    }
    let stride = params.width + 2u;
    var own = LOWEST;
    for (var s = place.thread; s < params.splits; s += THREADS) {
        own = max(own, partial[(s * params.rows + row) * stride]);
    }
    largest_parts[place.thread] = own;
    workgroupBarrier();
    var largest = LOWEST;
    for (var i = 0u; i < min(THREADS, params.splits); i++) {
        largest = max(largest, largest_parts[i]);
    }
    let channel = place.workgroup.x * CHANNELS + place.thread % CHANNELS;
    var sum = vec2(0.0);
    for (var s = place.thread / CHANNELS; s < params.splits; s += PARTS) {
        let at = (s * params.rows + row) * stride;
        let weight = exp(partial[at] - largest);
        sum += weight * vec2(partial[at + 1u], partial[at + 2u + min(channel, params.width - 1u)]);
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
            value *= sigmoid(gates[row * params.gate_stride + params.gate_at + channel]);
        }
        y[(params.first + row) * params.width + channel] = value;
    }
}
