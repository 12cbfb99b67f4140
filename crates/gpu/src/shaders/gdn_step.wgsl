// A whole step of a Gated DeltaNet for spans of one token: the convolution of its queries, keys and values, their norms,
// the gates, and then, as in gdn.wgsl, S *= g; u = (v - S k) beta; S += u k^T; y = S q. A workgroup has ROWS rows of one
// head's S of a span at a time, TURNS times, LANES threads a row; every one of them convolves the queries and keys of its
// head for itself. The window is read in one of the two that a sequence has, and the next one written to the other.
struct Params {
    // Spans from this one on. Longer ones among them compute along with the others, but write nothing.
    first_span: u32,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    // Values from row to row of x, and where a and b are behind the queries, keys and values.
    stride: u32,
    a_at: u32,
    b_at: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

// [q | k | v], and somewhere behind them a and b.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> taps: array<f32>;
@group(0) @binding(2) var<storage, read> a_log: array<f32>;
@group(0) @binding(3) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(4) var<storage, read> steps: array<u32>;
// For each state row the windows of even positions and of odd ones: [kernel - 1][channel], oldest first.
@group(0) @binding(5) var<storage, read_write> windows: array<f32>;
@group(0) @binding(6) var<storage, read_write> state: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;

// Threads of a row, each with QUADS fours of its columns. A head is as wide as a workgroup, or half of that.
const ROWS: u32 = THREADS / LANES;
const WIDEST: u32 = 4u * LANES * QUADS;

var<workgroup> queries: array<vec4<f32>, WIDEST / 4u>;
var<workgroup> keys: array<vec4<f32>, WIDEST / 4u>;

// What the convolution of a channel takes, oldest first.
struct Channel {
    taps: array<f32, TAPS>,
    inputs: array<f32, TAPS>,
}

fn channels() -> u32 {
    return 2u * params.key_heads * params.key_dim + params.value_heads * params.value_dim;
}

// Where the window of a sequence of `position` tokens begins.
fn window_at(state: u32, position: u32) -> u32 {
    return (2u * state + position % 2u) * (TAPS - 1u) * channels();
}

fn load_channel(window: u32, channel: u32) -> Channel {
    var loaded: Channel;
    for (var j = 0u; j < TAPS; j++) {
        loaded.taps[j] = taps[channel * TAPS + j];
    }
    for (var j = 0u; j + 1u < TAPS; j++) {
        loaded.inputs[j] = windows[window + j * channels() + channel];
    }
    return loaded;
}

fn convolved(channel: Channel) -> f32 {
    var sum = 0.0;
    for (var j = 0u; j < TAPS; j++) {
        sum += channel.taps[j] * channel.inputs[j];
    }
    return silu(sum);
}

fn move_window(next: u32, own: u32, channel: Channel) {
    for (var j = 1u; j < TAPS; j++) {
        windows[next + (j - 1u) * channels() + own] = channel.inputs[j];
    }
}

// A row's part of the state that a thread has.
fn load_state(matrix: u32, lane: u32) -> array<vec4<f32>, QUADS> {
    var s: array<vec4<f32>, QUADS>;
    for (var j = 0u; j < QUADS; j++) {
        s[j] = state[matrix + min(lane + j * LANES, params.key_dim / 4u - 1u)];
    }
    return s;
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let span = span_of(params.first_span + place.workgroup.z);
    let lane = lane_of(place);
    let head = place.workgroup.y;
    let ratio = params.value_heads / params.key_heads;
    let first_row = place.workgroup.x * ROWS * TURNS + team_of(place);
    // Rows beyond the last compute along with it, but write nothing.
    let single = span.len == 1u;
    let key_total = params.key_heads * params.key_dim;
    let quads = params.key_dim / 4u;
    let matrix_head = (span.state * params.value_heads + head) * params.value_dim;

    // What does not come from the kernel before is asked for first.
    var row = min(first_row, params.value_dim - 1u);
    var next_s = load_state((matrix_head + row) * quads, lane);
    let c = place.thread;
    let q_at = head / ratio * params.key_dim + min(c, params.key_dim - 1u);
    let v_head = 2u * key_total + head * params.value_dim;
    let window = window_at(span.state, span.position);
    var q_channel = load_channel(window, q_at);
    var k_channel = load_channel(window, key_total + q_at);
    var next_v = load_channel(window, v_head + row);
    let head_log = a_log[head];
    let head_bias = dt_bias[head];
    let at = span.row * params.stride;
    wait_for_inputs(place);
    q_channel.inputs[TAPS - 1u] = x[ready(at + q_at)];
    k_channel.inputs[TAPS - 1u] = x[ready(at + key_total + q_at)];
    next_v.inputs[TAPS - 1u] = x[ready(at + v_head + row)];
    let a = x[ready(at + params.a_at + head)];
    let b = x[ready(at + params.b_at + head)];

    if c < WIDEST {
        // Columns beyond the last count for nothing.
        queries[c / 4u][c % 4u] = select(0.0, convolved(q_channel), c < params.key_dim);
        keys[c / 4u][c % 4u] = select(0.0, convolved(k_channel), c < params.key_dim);
    }
    let keep = decay(a, head_log, head_bias);
    let rate = sigmoid(b);
    let next = window_at(span.state, span.position + 1u);
    workgroupBarrier();

    for (var turn = 0u; turn < TURNS; turn++) {
        let own_row = row;
        let s = next_s;
        let v_channel = next_v;
        let real = single && first_row + turn * ROWS < params.value_dim;
        if turn + 1u < TURNS {
            row = min(first_row + (turn + 1u) * ROWS, params.value_dim - 1u);
            next_s = load_state((matrix_head + row) * quads, lane);
            next_v = load_channel(window, v_head + row);
            next_v.inputs[TAPS - 1u] = x[at + v_head + row];
        }
        let v = convolved(v_channel);
        var product = vec3(0.0);
        var square = vec2(0.0);
        for (var j = 0u; j < QUADS; j++) {
            let k = keys[lane + j * LANES];
            let q = queries[lane + j * LANES];
            product += vec3(dot(s[j], k), dot(s[j], q), dot(k, q));
            square += vec2(dot(k, k), dot(q, q));
        }
        product = vec3(team_sum(product.x, place), team_sum(product.y, place), team_sum(product.z, place));
        square = vec2(team_sum(square.x, place), team_sum(square.y, place));
        let k_factor = 1.0 / sqrt(square.x + 1e-6);
        let q_factor = 1.0 / sqrt(square.y + 1e-6) / sqrt(f32(params.key_dim));
        product *= vec3(k_factor, q_factor, k_factor * q_factor);
        let u = (v - keep * product.x) * rate;
        if real {
            let matrix = (matrix_head + own_row) * quads;
            for (var j = 0u; j < QUADS; j++) {
                if lane + j * LANES < quads {
                    state[matrix + lane + j * LANES] = keep * s[j] + u * k_factor * keys[lane + j * LANES];
                }
            }
            if lane == 0u {
                let y_row = (span.row * params.value_heads + head) * params.value_dim;
                y[y_row + own_row] = keep * product.y + u * product.z;
                move_window(next, v_head + own_row, v_channel);
            }
        }
    }
    if single && place.workgroup.x == 0u && head % ratio == 0u && c < params.key_dim {
        move_window(next, q_at, q_channel);
        move_window(next, key_total + q_at, k_channel);
    }
    announce(place);
}
