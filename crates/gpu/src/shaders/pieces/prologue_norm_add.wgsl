// The input is rms(h) * norm, where h = stream + rms(x) * post_norm, which also goes into y behind
// the results, unless digits do. All of it is prepared at a time.
const NORMED: bool = true;
const SLICED: bool = false;

@group(0) @binding(3) var<storage, read> stream: array<f32>;
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> post_norm: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read> norm: array<vec4<f32>>;

var<private> raw: array<Eight, EACH>;
var<private> raw_stream: array<Eight, EACH>;
var<private> raw_post_norm: array<Eight, EACH>;
var<private> raw_norm: array<Eight, EACH>;
// 1 / rms(x)
var<private> post_inverse: f32;

fn raw8(e: u32) -> Eight {
    return Eight(x[ready(2u * e)], x[ready(2u * e + 1u)]);
}

fn four_of_stream(first: u32) -> vec4<f32> {
    let at = ready(first);
    return vec4(stream[at], stream[at + 1u], stream[at + 2u], stream[at + 3u]);
}

// What is rounded for experts, but for the norm's factor.
fn prepare_digits(place: Place) {
    var sum = vec2(0.0);
    for (var e = index_of(place); e < params.eights; e += THREADS) {
        let v = raw8(e);
        sum += squares_of8(v.a, v.b);
    }
    post_inverse = inverse_rms(sum, params.cols, params.eps, place);
}

fn digit8(e: u32) -> Eight {
    let v = raw8(e);
    let a = four_of_stream(8u * e) + v.a * post_inverse * post_norm[2u * e];
    return Eight(a, four_of_stream(8u * e + 4u) + v.b * post_inverse * post_norm[2u * e + 1u]);
}

fn load_norm8(n: u32, e: u32) {
    raw_post_norm[n] = Eight(post_norm[2u * e], post_norm[2u * e + 1u]);
    raw_norm[n] = Eight(norm[2u * e], norm[2u * e + 1u]);
}

fn load8(n: u32, e: u32) {
    raw[n] = raw8(e);
    raw_stream[n] = Eight(four_of_stream(8u * e), four_of_stream(8u * e + 4u));
}

fn prepare(count: u32, place: Place) {
    var sum = vec2(0.0);
    for (var n = 0u; n < EACH; n++) {
        sum += select(vec2(0.0), squares_of8(raw[n].a, raw[n].b), n * THREADS + index_of(place) < 4u * count);
    }
    post_inverse = inverse_rms(sum, params.cols, params.eps, place);
}

fn made8(n: u32, local: u32, real: bool, place: Place) -> Eight {
    let v = raw[n];
    let a = raw_stream[n].a + v.a * post_inverse * raw_post_norm[n].a;
    let h = Eight(a, raw_stream[n].b + v.b * post_inverse * raw_post_norm[n].b);
    squares += select(vec2(0.0), squares_of8(h.a, h.b), real);
    if !DIGITS && real && folded(place) == 0u {
        write_h(local, h);
    }
    return Eight(h.a * raw_norm[n].a, h.b * raw_norm[n].b);
}

fn group_factor(group: u32) -> f32 {
    return 1.0;
}
