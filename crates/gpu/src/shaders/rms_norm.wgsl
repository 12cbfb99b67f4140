// y[r] = rms(x[r]) * weight, one row per workgroup. Rows may be heads' slices: weight is then shared by them.
struct Params {
    width: u32,
    rows: u32,
    eps: f32,
    has_weight: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let row = folded(place);
    if row >= params.rows {
        return;
    }
    let start = row * params.width;
    // What comes first is asked for at once and kept.
    var held: array<vec2<f32>, HELD>;
    for (var i = 0u; i < HELD; i++) {
        let c = min(i * THREADS + place.thread, params.width - 1u);
        held[i] = vec2(x[start + c], weight[params.has_weight * c]);
    }
    var squares = vec2(0.0);
    for (var i = 0u; i < HELD; i++) {
        squares += select(vec2(0.0), squares_of(held[i].x), i * THREADS + place.thread < params.width);
    }
    for (var c = HELD * THREADS + place.thread; c < params.width; c += THREADS) {
        squares += squares_of(x[start + c]);
    }
    let inverse = inverse_rms(squares, params.width, params.eps, place);
    for (var i = 0u; i < HELD; i++) {
        let c = i * THREADS + place.thread;
        if c < params.width {
            y[start + c] = held[i].x * inverse * select(1.0, held[i].y, params.has_weight != 0u);
        }
    }
    for (var c = HELD * THREADS + place.thread; c < params.width; c += THREADS) {
        y[start + c] = x[start + c] * inverse * select(1.0, weight[params.has_weight * c], params.has_weight != 0u);
    }
}
