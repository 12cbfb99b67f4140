// The input is what `attention_heads` has in splits of positions.
const NORMED: bool = false;
const SLICED: bool = false;

// Values of four splits, then for each head of `slice_width` values the largest scores and the sums
// of all four.
@group(0) @binding(5) var<storage, read> parts: array<vec4<f32>>;

var<private> raw_splits: array<Eight, 4u * EACH>;
var<private> raw_maxima: array<vec4<f32>, EACH>;
var<private> raw_sums: array<vec4<f32>, EACH>;

fn part8(e: u32) -> Eight {
    return Eight(parts[ready(2u * e)], parts[ready(2u * e + 1u)]);
}

fn load_norm8(n: u32, e: u32) {}

fn load8(n: u32, e: u32) {
    let stats = 8u * params.eights + 2u * (8u * e / params.slice_width);
    raw_maxima[n] = parts[ready(stats)];
    raw_sums[n] = parts[ready(stats + 1u)];
    for (var s = 0u; s < 4u; s++) {
        raw_splits[4u * n + s] = part8(min(s, params.splits - 1u) * params.eights + e);
    }
}

fn prepare(count: u32, place: Place) {}

fn made8(n: u32, local: u32, real: bool, place: Place) -> Eight {
    let there = vec4(0u, 1u, 2u, 3u) < vec4(params.splits);
    let maxima = select(vec4(LOWEST), raw_maxima[n], there);
    let largest = max(max(maxima.x, maxima.y), max(maxima.z, maxima.w));
    var shares = select(vec4(0.0), exp(maxima - largest), there);
    shares /= dot(shares, select(vec4(0.0), raw_sums[n], there));
    var v = Eight(vec4(0.0), vec4(0.0));
    for (var s = 0u; s < 4u; s++) {
        v.a += shares[s] * raw_splits[4u * n + s].a;
        v.b += shares[s] * raw_splits[4u * n + s].b;
    }
    return v;
}

fn group_factor(group: u32) -> f32 {
    return 1.0;
}
