// y[t, r] = W[r] . x[t] (+ bias[r]) (+ residual[t, r]): ROWS rows and TOKENS tokens per workgroup.
const TOTALS: u32 = ROWS * TOKENS;

struct Params {
    row_words: u32,
    row_scales: u32,
    cols: u32,
    eights: u32,
    // Rows of this part of the matrix, and where its first one goes.
    rows: u32,
    first: u32,
    tokens: u32,
    out_cols: u32,
    // Whether there is a bias, a residual.
    has_bias: u32,
    has_residual: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> residual: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let row = folded(place) * ROWS;
    let token = place.workgroup.z * TOKENS;
    for (var k = 0u; k < TOTALS; k++) {
        totals[k] = 0.0;
    }
    for (var i = place.thread; i < params.eights; i += THREADS) {
        var inputs: array<Eight, TOKENS>;
        var sums: array<f32, TOKENS>;
        for (var t = 0u; t < TOKENS; t++) {
            inputs[t] = input8(min(token + t, params.tokens - 1u), i);
            sums[t] = sum8(inputs[t]);
        }
        for (var r = 0u; r < ROWS; r++) {
            let at = min(row + r, params.rows - 1u);
            let values = codes8(at, i);
            let s = scale(at, i);
            for (var t = 0u; t < TOKENS; t++) {
                totals[r * TOKENS + t] += s.x * dot8(values, inputs[t]) + s.y * sums[t];
            }
        }
    }
    publish_totals(place);
    for (var k = place.thread; k < TOTALS; k += THREADS) {
        let r = row + k / TOKENS;
        let t = token + k % TOKENS;
        if r < params.rows && t < params.tokens {
            var value = total(k, place);
            let column = params.first + r;
            if params.has_bias != 0u {
                value += bias[column];
            }
            if params.has_residual != 0u {
                value += residual[t * params.out_cols + column];
            }
            y[t * params.out_cols + column] = value;
        }
    }
}
