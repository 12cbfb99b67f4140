// y[r] = rms(x[r]) * w, one row per workgroup. Rows may be heads' slices: w is then shared by them.
struct Params {
    width: u32,
    rows: u32,
    eps: f32,
    has_w: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let row = folded(place);
    if row >= params.rows {
        return;
    }
    let start = row * params.width;
    var squares = vec2(0.0);
    for (var c = place.thread; c < params.width; c += THREADS) {
        squares += squares_of(x[start + c]);
    }
    let inverse = inverse_rms(squares, params.width, params.eps, place);
    for (var c = place.thread; c < params.width; c += THREADS) {
        var value = x[start + c] * inverse;
        if params.has_w != 0u {
            value *= w[c];
        }
        y[start + c] = value;
    }
}
