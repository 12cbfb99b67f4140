// What the kernels of a Gated DeltaNet take: queries, keys and values of all tokens side by side.
struct Params {
    tokens: u32,
    first_row: u32,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> qkv: array<f32>;
