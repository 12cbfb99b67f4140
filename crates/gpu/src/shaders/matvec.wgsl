// y[t, r] = W[r] . x[t] (+ bias[r]) (+ residual[t, r]): ROWS rows and TOKENS tokens per workgroup.
const TOTALS: u32 = ROWS * TOKENS;

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
            let at = params.skip + min(row + r, params.rows - 1u);
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
            y[place_of(t, r)] = completed(total(k, place), t, r);
        }
    }
}
