// y = (residual + rms(x) * weight) * factor. One row per workgroup.
struct Params {
    width: u32,
    rows: u32,
    eps: f32,
    factor: f32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> residual: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let row = folded(place);
    if row >= params.rows {
        return;
    }
    let start = row * params.width;
    // What comes first is asked for at once and kept.
    var held: array<vec3<f32>, HELD>;
    for (var i = 0u; i < HELD; i++) {
        let c = min(i * THREADS + place.thread, params.width - 1u);
        held[i] = vec3(x[start + c], residual[start + c], weight[c]);
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
            y[start + c] = (held[i].y + held[i].x * inverse * held[i].z) * params.factor;
        }
    }
    for (var c = HELD * THREADS + place.thread; c < params.width; c += THREADS) {
        y[start + c] = (residual[start + c] + x[start + c] * inverse * weight[c]) * params.factor;
    }
}
