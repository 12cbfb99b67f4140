// y = (residual + rms(rms(a) * a_weight + rms(b) * b_weight) * weight) * factor. One row per workgroup; LONG, if its threads cannot keep all of it.
struct Params {
    width: u32,
    rows: u32,
    eps: f32,
    factor: f32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> residual: array<f32>;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read> a_weight: array<f32>;
@group(0) @binding(4) var<storage, read> b_weight: array<f32>;
@group(0) @binding(5) var<storage, read> weight: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

fn combine(row: u32, place: Place) {
    let start = row * params.width;
    // What comes first is asked for at once and kept.
    var held: array<vec2<f32>, HELD>;
    var held_w: array<vec3<f32>, HELD>;
    var held_r: array<f32, HELD>;
    for (var i = 0u; i < HELD; i++) {
        let c = min(i * THREADS + place.thread, params.width - 1u);
        held_w[i] = vec3(a_weight[c], b_weight[c], weight[c]);
    }
    wait_for_inputs(place);
    for (var i = 0u; i < HELD; i++) {
        let c = min(i * THREADS + place.thread, params.width - 1u);
        held[i] = vec2(a[ready(start + c)], b[ready(start + c)]);
        held_r[i] = residual[ready(start + c)];
    }
    var squares_a = vec2(0.0);
    var squares_b = vec2(0.0);
    for (var i = 0u; i < HELD; i++) {
        let real = i * THREADS + place.thread < params.width;
        squares_a += select(vec2(0.0), squares_of(held[i].x), real);
        squares_b += select(vec2(0.0), squares_of(held[i].y), real);
    }
    for (var c = HELD * THREADS + place.thread; LONG == 1u && c < params.width; c += THREADS) {
        squares_a += squares_of(a[ready(start + c)]);
        squares_b += squares_of(b[ready(start + c)]);
    }
    let inverse_a = inverse_of(workgroup_sum_of_many(squares_a, place), params.width, params.eps);
    let inverse_b = inverse_of(workgroup_sum_of_many(squares_b, place), params.width, params.eps);
    var squares = vec2(0.0);
    for (var i = 0u; i < HELD; i++) {
        held[i].x = held[i].x * inverse_a * held_w[i].x + held[i].y * inverse_b * held_w[i].y;
        squares += select(vec2(0.0), squares_of(held[i].x), i * THREADS + place.thread < params.width);
    }
    for (var c = HELD * THREADS + place.thread; LONG == 1u && c < params.width; c += THREADS) {
        squares += squares_of(a[ready(start + c)] * inverse_a * a_weight[c] + b[ready(start + c)] * inverse_b * b_weight[c]);
    }
    let inverse = inverse_of(workgroup_sum_of_many(squares, place), params.width, params.eps);
    for (var i = 0u; i < HELD; i++) {
        let c = i * THREADS + place.thread;
        if c < params.width {
            y[start + c] = (held_r[i] + held[i].x * inverse * held_w[i].z) * params.factor;
        }
    }
    for (var c = HELD * THREADS + place.thread; LONG == 1u && c < params.width; c += THREADS) {
        let both = a[ready(start + c)] * inverse_a * a_weight[c] + b[ready(start + c)] * inverse_b * b_weight[c];
        y[start + c] = (residual[ready(start + c)] + both * inverse * weight[c]) * params.factor;
    }
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    if folded(place) < params.rows {
        combine(folded(place), place);
    } else {
        wait_for_inputs(place);
    }
    announce(place);
}
