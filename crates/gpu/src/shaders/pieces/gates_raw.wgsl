// Gates, queries and keys as they leave their projections.
const RAW: bool = true;

@group(0) @binding(4) var<storage, read> a: array<f32>;
@group(0) @binding(5) var<storage, read> b: array<f32>;
@group(0) @binding(6) var<storage, read> a_log: array<f32>;
@group(0) @binding(7) var<storage, read> dt_bias: array<f32>;

// How much of the state a token keeps, and how much of its own it adds, for gate `at` of head
// `head`.
fn keep_of(at: u32, head: u32) -> f32 {
    return decay(a[at], a_log[head], dt_bias[head]);
}

fn rate_of(at: u32) -> f32 {
    return sigmoid(b[at]);
}
