// Pairs of tokens and heads by head, and tiles of them: what expert_lists and expert_tiles would find if heads were experts that
// every token chooses.
struct Params {
    tokens: u32,
    heads: u32,
    tile_tokens: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read_write> list: array<u32>;
@group(0) @binding(1) var<storage, read_write> tiles: array<vec4<u32>>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let i = folded(place) * THREADS + place.thread;
    if i >= params.tokens * params.heads {
        return;
    }
    let head = i / params.tokens;
    let token = i % params.tokens;
    list[i] = token * params.heads + head;
    if token % params.tile_tokens == 0u {
        let of_head = (params.tokens + params.tile_tokens - 1u) / params.tile_tokens;
        let count = min(params.tile_tokens, params.tokens - token);
        tiles[head * of_head + token / params.tile_tokens] = vec4(head, i, count, 0u);
    }
}
