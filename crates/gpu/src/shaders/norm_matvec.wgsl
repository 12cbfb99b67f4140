// y[r] = W[r] . (rms(x) * norm) (+ bias[r]) for one token, in full precision: ROWS rows per workgroup, each of which finds the norm for itself. One more
// workgroup rounds rms(x) * expert_norm for experts.
const TOTALS: u32 = ROWS + 2u;

struct Params {
    row_words: u32,
    row_scales: u32,
    cols: u32,
    eights: u32,
    // Results, and rows before the first.
    rows: u32,
    skip: u32,
    has_bias: u32,
    eps: f32,
    // Workgroups of the product, where digits begin in y, and bits of the weights they are for.
    groups: u32,
    digits_at: u32,
    digit_bits: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> norm: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> expert_norm: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> bias: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

fn digit8(e: u32) -> Eight {
    return Eight(x[ready(2u * e)], x[ready(2u * e + 1u)]);
}

fn digit_weight8(e: u32) -> Eight {
    return Eight(expert_norm[2u * e], expert_norm[2u * e + 1u]);
}

fn product(place: Place) {
    let first = folded(place) * ROWS;
    for (var k = 0u; k < TOTALS; k++) {
        totals[k] = 0.0;
    }
    for (var i = place.thread; i < params.eights; i += THREADS) {
        let own = digit8(i);
        let input = Eight(own.a * norm[2u * i], own.b * norm[2u * i + 1u]);
        let squares = squares_of8(own.a, own.b);
        totals[ROWS] += squares.x;
        totals[ROWS + 1u] += squares.y;
        let sum = sum8(input);
        for (var r = 0u; r < ROWS; r++) {
            let row = params.skip + min(first + r, params.rows - 1u);
            let s = scale(row, i);
            totals[r] += s.x * dot8(codes8(row, i), input) + s.y * sum;
        }
    }
    publish_totals(place);
    if place.thread < ROWS && first + place.thread < params.rows {
        let squares = vec2(total(ROWS, place), total(ROWS + 1u, place));
        let value = inverse_of(squares, params.cols, params.eps) * total(place.thread, place);
        let row = first + place.thread;
        y[row] = value + select(0.0, bias[params.has_bias * row], params.has_bias != 0u);
    }
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    wait_for_inputs(place);
    if folded(place) == params.groups {
        write_digits(place);
    } else {
        product(place);
    }
    announce(place);
}
