// The input is rms(h) * norm, where
// h = (stream + rms(rms(dense) * dense_norm + rms(routed) * routed_norm) * post_norm) * factor,
// which also goes into y behind the results. The norms lie in `vectors`. All of it is prepared at
// a time.
const NORMED: bool = true;
const SLICED: bool = false;

@group(0) @binding(3) var<storage, read> dense: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> routed: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> stream: array<f32>;
@group(0) @binding(6) var<storage, read> vectors: array<vec4<f32>>;

// `raw` begins as what is there of `dense`, and ends as h.
var<private> raw: array<Eight, EACH>;
var<private> raw_routed: array<Eight, EACH>;
var<private> raw_stream: array<Eight, EACH>;
var<private> raw_dense_norm: array<Eight, EACH>;
var<private> raw_routed_norm: array<Eight, EACH>;
var<private> raw_post_norm: array<Eight, EACH>;
var<private> raw_norm: array<Eight, EACH>;

// Eight of the norm that begins at `first`, in fours.
fn norm8(first: u32, e: u32) -> Eight {
    return Eight(vectors[first + 2u * e], vectors[first + 2u * e + 1u]);
}

fn four_of_stream(first: u32) -> vec4<f32> {
    let at = ready(first);
    return vec4(stream[at], stream[at + 1u], stream[at + 2u], stream[at + 3u]);
}

fn load_norm8(n: u32, e: u32) {
    raw_dense_norm[n] = norm8(params.dense_norm_at, e);
    raw_routed_norm[n] = norm8(params.routed_norm_at, e);
    raw_post_norm[n] = norm8(params.post_norm_at, e);
    raw_norm[n] = norm8(params.norm_at, e);
}

fn load8(n: u32, e: u32) {
    raw[n] = Eight(dense[ready(2u * e)], dense[ready(2u * e + 1u)]);
    raw_routed[n] = Eight(routed[ready(2u * e)], routed[ready(2u * e + 1u)]);
    raw_stream[n] = Eight(four_of_stream(8u * e), four_of_stream(8u * e + 4u));
}

fn prepare(count: u32, place: Place) {
    var squares_of_both = vec4(0.0);
    for (var n = 0u; n < EACH; n++) {
        let real = n * THREADS + index_of(place) < 4u * count;
        let both = vec4(squares_of8(raw[n].a, raw[n].b), squares_of8(raw_routed[n].a, raw_routed[n].b));
        squares_of_both += select(vec4(0.0), both, real);
    }
    let sums = workgroup_sum4(squares_of_both, place);
    let one = inverse_of(sums.xy, params.cols, params.eps);
    let other = inverse_of(sums.zw, params.cols, params.eps);
    for (var n = 0u; n < EACH; n++) {
        let a = raw[n].a * one * raw_dense_norm[n].a + raw_routed[n].a * other * raw_routed_norm[n].a;
        raw[n] = Eight(a, raw[n].b * one * raw_dense_norm[n].b + raw_routed[n].b * other * raw_routed_norm[n].b);
    }
    var sum = vec2(0.0);
    for (var n = 0u; n < EACH; n++) {
        sum += select(vec2(0.0), squares_of8(raw[n].a, raw[n].b), n * THREADS + index_of(place) < 4u * count);
    }
    let inverse = inverse_rms(sum, params.cols, params.eps, place);
    for (var n = 0u; n < EACH; n++) {
        let a = (raw_stream[n].a + raw[n].a * inverse * raw_post_norm[n].a) * params.factor;
        raw[n] = Eight(a, (raw_stream[n].b + raw[n].b * inverse * raw_post_norm[n].b) * params.factor);
    }
}

fn made8(n: u32, local: u32, real: bool, place: Place) -> Eight {
    let v = raw[n];
    squares += select(vec2(0.0), squares_of8(v.a, v.b), real);
    if real && folded(place) == 0u {
        write_h(local, v);
    }
    return Eight(v.a * raw_norm[n].a, v.b * raw_norm[n].b);
}

fn group_factor(group: u32) -> f32 {
    return 1.0;
}
