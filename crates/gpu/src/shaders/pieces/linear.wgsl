// A linear layer: what it takes, and what is added to its product.
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
    // Rows of the part before the matrix.
    skip: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> residual: array<f32>;

// Where the result for a token and a row of this part goes.
fn place_of(token: u32, row: u32) -> u32 {
    return token * params.out_cols + params.first + row;
}

fn completed(product: f32, token: u32, row: u32) -> f32 {
    var value = product;
    if params.has_bias != 0u {
        value += bias[params.first + row];
    }
    if params.has_residual != 0u {
        value += residual[place_of(token, row)];
    }
    return value;
}
