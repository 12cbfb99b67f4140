// Gates of the recurrence, and queries and keys that are normed.
const RAW: bool = false;

@group(0) @binding(4) var<storage, read> g: array<f32>;
@group(0) @binding(5) var<storage, read> beta: array<f32>;

// How much of the state a token keeps, and how much of its own it adds, for gate `at` of head
// `head`.
fn keep_of(at: u32, head: u32) -> f32 {
    return g[at];
}

fn rate_of(at: u32) -> f32 {
    return beta[at];
}
