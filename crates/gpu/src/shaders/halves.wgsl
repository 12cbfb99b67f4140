// Rows of [a | b] as halves for matrix units, each divided by a power of two no less than any of its values, so that no outlier
// is too large for a half. Rows are (token, head); those of `group` neighbouring heads come out together, for all tokens, so that a
// tile of them lies in one piece. A subgroup has a row; where there are matrix units, it has 32 threads.
struct Params {
    tokens: u32,
    // First token of a and b.
    first: u32,
    heads: u32,
    group: u32,
    width_a: u32,
    width_b: u32,
    // Pairs of a row that comes out, filled up with zeros.
    pairs: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> halves: array<u32>;
@group(0) @binding(3) var<storage, read_write> factors: array<f32>;

fn value(row: u32, column: u32) -> f32 {
    if column < params.width_a {
        return a[row * params.width_a + column];
    }
    if column < params.width_a + params.width_b {
        return b[row * params.width_b + column - params.width_a];
    }
    return 0.0;
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let item = folded(place) * (THREADS / 32u) + place.subgroup;
    let token = item / params.heads;
    let head = item % params.heads;
    if token >= params.tokens {
        return;
    }
    let row = (params.first + token) * params.heads + head;
    var own = 0.0;
    // Several values at a time: their loads do not wait for each other.
    for (var c = place.lane; c < params.width_a + params.width_b; c += 256u) {
        // repeat j < 8
        own = max(own, abs(value(row, c + #ju * 32u)));
        // end repeat
    }
    // The next exponent; one where there is nothing but zeros, and no infinity.
    let exponent = clamp((bitcast<u32>(subgroupMax(own)) >> 23u) + 1u, 2u, 252u);
    let inverse = bitcast<f32>((254u - exponent) << 23u);
    let out = (head / params.group * params.tokens + token) * params.group + head % params.group;
    if place.lane == 0u {
        factors[out] = bitcast<f32>(exponent << 23u);
    }
    for (var start = place.lane; start < params.pairs; start += 128u) {
        // repeat j < 4
        let i_#j = start + #ju * 32u;
        let pair_#j = vec2(value(row, 2u * i_#j), value(row, 2u * i_#j + 1u));
        // end repeat
        // repeat j < 4
        if i_#j < params.pairs {
            halves[out * params.pairs + i_#j] = pack2x16float(inverse * pair_#j);
        }
        // end repeat
    }
}
