// A whole step of a Gated DeltaNet for one token: the convolution of its queries, keys and values, their norms, the gates, and then, as in
// gdn.wgsl, S *= g; u = (v - S k) beta; S += u k^T; y = S q. A workgroup has ROWS rows of one head's S, LANES threads a row; every one of them
// convolves the queries and keys of its head for itself. The window is read in one buffer and written to another.
struct Params {
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    kernel: u32,
    // Where a and b are behind the queries, keys and values.
    a_at: u32,
    b_at: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

// [q | k | v], and somewhere behind them a and b.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> taps: array<f32>;
@group(0) @binding(2) var<storage, read> a_log: array<f32>;
@group(0) @binding(3) var<storage, read> dt_bias: array<f32>;
// [kernel - 1][channel], oldest first.
@group(0) @binding(4) var<storage, read> window: array<f32>;
@group(0) @binding(5) var<storage, read_write> next_window: array<f32>;
@group(0) @binding(6) var<storage, read_write> state: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;

// Threads of a row, each with QUADS fours of its columns.
const ROWS: u32 = THREADS / LANES;
const WIDEST: u32 = 4u * LANES * QUADS;

var<workgroup> queries: array<f32, WIDEST>;
var<workgroup> keys: array<f32, WIDEST>;

fn channels() -> u32 {
    return 2u * params.key_heads * params.key_dim + params.value_heads * params.value_dim;
}

fn convolved(channel: u32) -> f32 {
    let before = params.kernel - 1u;
    var sum = taps[channel * params.kernel + before] * x[channel];
    for (var j = 0u; j < before; j++) {
        sum += taps[channel * params.kernel + j] * window[j * channels() + channel];
    }
    return silu(sum);
}

fn move_window(channel: u32) {
    let before = params.kernel - 1u;
    for (var j = 1u; j < before; j++) {
        next_window[(j - 1u) * channels() + channel] = window[j * channels() + channel];
    }
    if before > 0u {
        next_window[(before - 1u) * channels() + channel] = x[channel];
    }
}

fn four(at: u32, of_keys: bool) -> vec4<f32> {
    if of_keys {
        return vec4(keys[at], keys[at + 1u], keys[at + 2u], keys[at + 3u]);
    }
    return vec4(queries[at], queries[at + 1u], queries[at + 2u], queries[at + 3u]);
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let lane = lane_of(place);
    let head = place.workgroup.y;
    let ratio = params.value_heads / params.key_heads;
    let key_head = head / ratio;
    let row = place.workgroup.x * ROWS + team_of(place);
    // Rows beyond the last compute along, but read and write nothing.
    let real = row < params.value_dim;
    let key_total = params.key_heads * params.key_dim;
    let quads = params.key_dim / 4u;
    let matrix = (head * params.value_dim + row) * quads;

    var s: array<vec4<f32>, QUADS>;
    for (var j = 0u; j < QUADS; j++) {
        s[j] = vec4(0.0);
        if real && lane + j * LANES < quads {
            s[j] = state[matrix + lane + j * LANES];
        }
    }
    let keep = decay(x[params.a_at + head], a_log[head], dt_bias[head]);
    let rate = sigmoid(x[params.b_at + head]);
    let owner = place.workgroup.x == 0u && head % ratio == 0u;
    for (var c = place.thread; c < WIDEST; c += THREADS) {
        queries[c] = 0.0;
        keys[c] = 0.0;
        if c < params.key_dim {
            let q = key_head * params.key_dim + c;
            queries[c] = convolved(q);
            keys[c] = convolved(key_total + q);
            if owner {
                move_window(q);
                move_window(key_total + q);
            }
        }
    }
    var v = 0.0;
    if real {
        let channel = 2u * key_total + head * params.value_dim + row;
        v = convolved(channel);
        if lane == 0u {
            move_window(channel);
        }
    }
    workgroupBarrier();

    var product = vec3(0.0);
    var square = vec2(0.0);
    for (var j = 0u; j < QUADS; j++) {
        let at = 4u * (lane + j * LANES);
        let k = four(at, true);
        let q = four(at, false);
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
        for (var j = 0u; j < QUADS; j++) {
            if lane + j * LANES < quads {
                state[matrix + lane + j * LANES] = keep * s[j] + u * k_factor * four(4u * (lane + j * LANES), true);
            }
        }
        if lane == 0u {
            y[head * params.value_dim + row] = keep * product.y + u * product.z;
        }
    }
}
