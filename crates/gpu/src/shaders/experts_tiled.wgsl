// Products with experts for many tokens: a workgroup has TILE_ROWS rows of one expert and a tile of pairs that chose it. With GATED, rows
// of gate and up alternate and h[p, r] = act(Wgate_e[r] . x) * (Wup_e[r] . x); without, h[p, r] = W_e[r] . x. The input of pair p
// is row p / `share` of x.
struct Params {
    row_words: u32,
    row_scales: u32,
    cols: u32,
    eights: u32,
    // Rows of all experts in this part: its first, and one past its last.
    first: u32,
    end: u32,
    // Rows of one expert.
    expert_rows: u32,
    share: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(3) var<storage, read> list: array<u32>;
@group(0) @binding(4) var<storage, read> tiles: array<vec4<u32>>;
// What inputs are divided by where halves multiply; not read elsewhere.
@group(0) @binding(5) var<storage, read> factors: array<f32>;
@group(0) @binding(6) var<storage, read_write> h: array<f32>;

const PAIR: u32 = 1u + GATED;

// Where the tile's pairs begin in the list, and how many there are; its first row within the expert.
var<private> begin: u32;
var<private> count: u32;
var<private> within: u32;

fn tile_input(i: u32) -> u32 {
    if i >= count {
        return NO_INPUT;
    }
    return list[begin + i] / params.share;
}

fn tile_finish(i: u32, row: u32, products: vec2<f32>) {
    if i >= count {
        return;
    }
    var value = products.x;
    if GATED == 1u {
        value = activate(value) * products.y;
    }
    h[(list[begin + i] * params.expert_rows + within + row) / PAIR] = value;
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let tile = tiles[place.workgroup.y + place.workgroup.z * place.grid.y];
    begin = tile.y;
    count = tile.z;
    within = place.workgroup.x * TILE_ROWS;
    let row = tile.x * params.expert_rows + within;
    let end = min((tile.x + 1u) * params.expert_rows, params.end);
    // No such tile, or its rows lie in another part: all threads leave.
    if count == 0u || row < params.first || row >= params.end {
        return;
    }
    multiply_tile(row - params.first, end - params.first, place);
}
