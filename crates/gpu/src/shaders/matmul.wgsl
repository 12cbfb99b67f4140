// y[t, r] = W[r] . x[t] (+ bias[r]) (+ residual[t, r]), a tile per workgroup: for many tokens.
// What inputs are divided by where halves multiply; not read elsewhere.
@group(0) @binding(5) var<storage, read> factors: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

var<private> first_token: u32;

fn tile_input(i: u32) -> u32 {
    return select(NO_INPUT, first_token + i, first_token + i < params.tokens);
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let first_row = folded(place) * TILE_ROWS;
    first_token = place.workgroup.z * TILE_TOKENS;
    multiply_tile(params.skip + first_row, params.skip + params.rows, place);
    for (var j = 0u; j < SHARE; j++) {
        let token = first_token + place.thread % 16u + 16u * j;
        for (var k = 0u; k < 4u; k++) {
            let row = first_row + place.thread / 16u * 4u + k;
            if row < params.rows && token < params.tokens {
                y[place_of(token, row)] = completed(tile_sums[j][k], token, row);
            }
        }
    }
}
