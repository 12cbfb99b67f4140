// Cuts the lists of all experts into tiles of TILE_TOKENS pairs: for each tile its expert, where its pairs begin in the list, and how
// many there are; none for tiles that are not needed. One workgroup.
struct Params {
    experts: u32,
    // Tiles there can be at most.
    tiles: u32,
    tile_tokens: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> spans: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> tiles: array<vec4<u32>>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let size = params.tile_tokens;
    var needed = 0u;
    for (var e = 0u; e < params.experts; e++) {
        let span = spans[e];
        let count = (span.y + size - 1u) / size;
        // The experts' tiles are shared out among the threads.
        if e % THREADS == place.thread {
            for (var i = 0u; i < count; i++) {
                tiles[needed + i] = vec4(e, span.x + i * size, min(size, span.y - i * size), 0u);
            }
        }
        needed += count;
    }
    for (var i = needed + place.thread; i < params.tiles; i += THREADS) {
        tiles[i] = vec4(0u);
    }
}
