// The input is rms(x) * norm * silu(gate), the norm over slices of `slice_width`.
const NORMED: bool = false;
const SLICED: bool = true;

@group(0) @binding(5) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read> norm: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> gate: array<vec4<f32>>;

var<private> raw: array<Eight, EACH>;
var<private> raw_norm: array<Eight, EACH>;
var<private> raw_gate: array<Eight, EACH>;
// Sums of squares of each eight.
var<workgroup> eight_squares: array<f32, 1u + 4u * ROOM>;

fn silu4(v: vec4<f32>) -> vec4<f32> {
    return vec4(silu(v.x), silu(v.y), silu(v.z), silu(v.w));
}

fn load_norm8(n: u32, e: u32) {
    let c = 2u * e % (params.slice_width / 4u);
    raw_norm[n] = Eight(norm[c], norm[c + 1u]);
}

fn load8(n: u32, e: u32) {
    raw[n] = Eight(x[ready(2u * e)], x[ready(2u * e + 1u)]);
    raw_gate[n] = Eight(gate[ready(2u * e)], gate[ready(2u * e + 1u)]);
}

fn prepare(count: u32, place: Place) {}

fn made8(n: u32, local: u32, real: bool, place: Place) -> Eight {
    let v = raw[n];
    if local < 4u * ROOM {
        eight_squares[local] = dot(v.a, v.a) + dot(v.b, v.b);
    }
    return Eight(v.a * raw_norm[n].a * silu4(raw_gate[n].a), v.b * raw_norm[n].b * silu4(raw_gate[n].b));
}

fn group_factor(group: u32) -> f32 {
    let slice = params.slice_width / 8u;
    let begin = 4u * (group % ROOM) / slice * slice;
    var sum = 0.0;
    for (var i = 0u; i < slice; i++) {
        sum += eight_squares[begin + i];
    }
    return 1.0 / sqrt(sum / f32(params.slice_width) + params.eps);
}
