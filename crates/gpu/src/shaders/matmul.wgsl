// y[t, r] = W[r] . x[t] (+ bias[r]) (+ residual[t, r]), a tile per workgroup: for many tokens.
// What inputs are divided by where halves multiply; not read elsewhere.
@group(0) @binding(5) var<storage, read> factors: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

const PAIR: u32 = 1u;

var<private> first_row: u32;
var<private> first_token: u32;

fn tile_input(i: u32) -> u32 {
    return select(NO_INPUT, first_token + i, first_token + i < params.tokens);
}

fn tile_finish(i: u32, row: u32, products: vec2<f32>) {
    let token = first_token + i;
    if token < params.tokens {
        y[place_of(token, first_row + row)] = completed(products.x, token, first_row + row);
    }
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    first_row = folded(place) * TILE_ROWS;
    first_token = place.workgroup.z * TILE_TOKENS;
    // Folding may leave more workgroups than there are tiles: all threads leave.
    if first_row >= params.rows {
        return;
    }
    multiply_tile(params.skip + first_row, params.skip + params.rows, place);
}
