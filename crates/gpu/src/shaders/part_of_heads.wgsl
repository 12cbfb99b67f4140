// From every head's slice of a row the `width` columns at `offset`, side by side into columns `out_start..` of y.
struct Params {
    tokens: u32,
    heads: u32,
    // Columns of x, and of one head in it.
    cols: u32,
    stride: u32,
    offset: u32,
    width: u32,
    out_cols: u32,
    out_start: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let i = folded(place) * THREADS + place.thread;
    let part = params.heads * params.width;
    let token = i / part;
    if token >= params.tokens {
        return;
    }
    let column = i % part;
    let source = column / params.width * params.stride + params.offset + column % params.width;
    y[token * params.out_cols + params.out_start + column] = x[token * params.cols + source];
}
