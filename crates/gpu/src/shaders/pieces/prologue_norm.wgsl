// The input is rms(x) * norm; the norm's factor comes in the end.
const NORMED: bool = true;
const SLICED: bool = false;

@group(0) @binding(5) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read> norm: array<vec4<f32>>;

var<private> raw: array<Eight, EACH>;
var<private> raw_norm: array<Eight, EACH>;

fn raw8(e: u32) -> Eight {
    return Eight(x[ready(2u * e)], x[ready(2u * e + 1u)]);
}

// What is rounded for experts, but for the norm's factor.
fn prepare_digits(place: Place) {}

fn digit8(e: u32) -> Eight {
    return raw8(e);
}

fn load_norm8(n: u32, e: u32) {
    raw_norm[n] = Eight(norm[2u * e], norm[2u * e + 1u]);
}

fn load8(n: u32, e: u32) {
    raw[n] = raw8(e);
}

fn prepare(count: u32, place: Place) {}

fn made8(n: u32, local: u32, real: bool, place: Place) -> Eight {
    let v = raw[n];
    squares += select(vec2(0.0), squares_of8(v.a, v.b), real);
    return Eight(v.a * raw_norm[n].a, v.b * raw_norm[n].b);
}

fn group_factor(group: u32) -> f32 {
    return 1.0;
}
