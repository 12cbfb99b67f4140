// The input is there.
const NORMED: bool = false;
const SLICED: bool = false;

@group(0) @binding(5) var<storage, read> x: array<vec4<f32>>;

var<private> raw: array<Eight, EACH>;

fn load_norm8(n: u32, e: u32) {}

fn load8(n: u32, e: u32) {
    raw[n] = Eight(x[ready(2u * e)], x[ready(2u * e + 1u)]);
}

fn prepare(count: u32, place: Place) {}

fn made8(n: u32, local: u32, real: bool, place: Place) -> Eight {
    return raw[n];
}

fn group_factor(group: u32) -> f32 {
    return 1.0;
}
