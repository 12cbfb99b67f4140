// y[t, r] = W[r] . x[t] (+ bias[r]) (+ residual[t, r]), a tile per workgroup: for many tokens.
struct Params {
    row_words: u32,
    row_scales: u32,
    cols: u32,
    eights: u32,
    // Rows of this part of the matrix, and where its first one goes.
    rows: u32,
    first: u32,
    tokens: u32,
    out_cols: u32,
    // Whether there is a bias, a residual.
    has_bias: u32,
    has_residual: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> residual: array<f32>;
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
    multiply_tile(first_row, params.rows, place);
    for (var j = 0u; j < SHARE; j++) {
        let token = first_token + place.thread % 16u + 16u * j;
        for (var k = 0u; k < 4u; k++) {
            let row = first_row + place.thread / 16u * 4u + k;
            if row < params.rows && token < params.tokens {
                let column = params.first + row;
                var value = tile_sums[j][k];
                if params.has_bias != 0u {
                    value += bias[column];
                }
                if params.has_residual != 0u {
                    value += residual[token * params.out_cols + column];
                }
                y[token * params.out_cols + column] = value;
            }
        }
    }
}
