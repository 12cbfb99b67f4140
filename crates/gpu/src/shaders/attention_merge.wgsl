// Puts the parts of attention together: some channels of one head of one token per workgroup, a channel to every TEAMS threads.
struct Params {
    // Spans of the batch.
    spans: u32,
    // What parts are of: rows of the batch from `first` on or, of spans of one token, spans.
    items: u32,
    first: u32,
    by_span: u32,
    // Tokens of spans that are taken.
    shortest: u32,
    longest: u32,
    heads: u32,
    // Channels of a value.
    width: u32,
    // 0 for none.
    window: u32,
    // Positions of a part.
    part_len: u32,
    // Columns from one row's gates to the next one's, from one head's to the next, and to the first; 0 for no gates.
    gate_row: u32,
    gate_stride: u32,
    gate_at: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

// [part][item][head][max, sum, values]
@group(0) @binding(0) var<storage, read> partial: array<f32>;
@group(0) @binding(1) var<storage, read> gates: array<f32>;
// [row][head][channel]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<storage, read> steps: array<u32>;

const CHANNELS: u32 = 32u;
const TEAMS: u32 = THREADS / CHANNELS;
// Parts that a thread loads at once.
const AHEAD: u32 = 8u;
// Threads whose largest one thread looks through.
const BUNCH: u32 = 16u;

// Sum of weights, sum of values.
var<workgroup> sums: array<vec2<f32>, THREADS>;
var<workgroup> largest_parts: array<f32, THREADS>;
var<workgroup> largest_bunches: array<f32, THREADS / BUNCH>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let item_head = place.workgroup.y + place.workgroup.z * place.grid.y;
    let item = params.first + item_head / params.heads;
    if item_head >= params.items * params.heads {
        return;
    }
    var row = item;
    var number = item;
    if params.by_span == 0u {
        number = row_span(item, params.spans);
    }
    let span = span_of(number);
    if params.by_span != 0u {
        row = span.row;
    }
    if span.len < params.shortest || span.len > params.longest {
        return;
    }
    let parts = parts_of(span);
    let head = item_head % params.heads;
    let stride = params.width + 2u;
    let channel = place.workgroup.x * CHANNELS + place.thread % CHANNELS;
    let own_channel = min(channel, params.width - 1u);
    let gate_first = row * params.gate_row + head * params.gate_stride + params.gate_at;
    let gate = gates[select(0u, gate_first + own_channel, params.gate_stride > 0u)];
    var own = LOWEST;
    for (var s = place.thread; s < parts; s += THREADS) {
        own = max(own, partial[(s * params.items * params.heads + item_head) * stride]);
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
    for (var start = place.thread / CHANNELS; start < parts; start += TEAMS * AHEAD) {
        var loaded: array<vec3<f32>, AHEAD>;
        for (var i = 0u; i < AHEAD; i++) {
            let part = min(start + i * TEAMS, parts - 1u);
            let at = (part * params.items * params.heads + item_head) * stride;
            loaded[i] = vec3(partial[at], partial[at + 1u], partial[at + 2u + own_channel]);
        }
        for (var i = 0u; i < AHEAD; i++) {
            let weight = select(0.0, exp(loaded[i].x - largest), start + i * TEAMS < parts);
            sum += weight * loaded[i].yz;
        }
    }
    sums[place.thread] = sum;
    workgroupBarrier();
    if place.thread < CHANNELS && channel < params.width {
        var all = vec2(0.0);
        for (var i = 0u; i < TEAMS; i++) {
            all += sums[i * CHANNELS + place.thread];
        }
        var value = all.y / all.x;
        if params.gate_stride > 0u {
            value *= sigmoid(gate);
        }
        y[(row * params.heads + head) * params.width + channel] = value;
    }
}
