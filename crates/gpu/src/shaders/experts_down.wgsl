// y[t, r] = sum_k w[t, k] Wdown_e[r] . h[t, k], e = ids[t, k], over those experts that lie in this part.
const TOTALS: u32 = ROWS;

struct Params {
    row_words: u32,
    row_scales: u32,
    cols: u32,
    eights: u32,
    // Rows of all experts in this part: its first, and one past its last.
    first: u32,
    end: u32,
    // Rows of one expert.
    expert_rows: u32,
    tokens: u32,
    top_k: u32,
    // Whether another part has written y already.
    add: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(3) var<storage, read> ids: array<u32>;
@group(0) @binding(4) var<storage, read> weights: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let token = place.workgroup.y + place.workgroup.z * place.grid.y;
    if token >= params.tokens {
        return;
    }
    let first = place.workgroup.x * ROWS;
    let last = min(params.expert_rows - first, ROWS) - 1u;
    for (var k = 0u; k < TOTALS; k++) {
        totals[k] = 0.0;
    }
    for (var n = place.thread; n < params.eights * params.top_k; n += THREADS) {
        let pair = token * params.top_k + n / params.eights;
        let row = ids[pair] * params.expert_rows + first;
        if row >= params.first && row < params.end {
            let i = n % params.eights;
            let input = input8(pair, i);
            let sum = sum8(input);
            let weight = weights[pair];
            for (var r = 0u; r < ROWS; r++) {
                let at = row - params.first + min(r, last);
                let s = scale(at, i);
                totals[r] += weight * (s.x * dot8(codes8(at, i), input) + s.y * sum);
            }
        }
    }
    publish_totals(place);
    if place.thread <= last {
        let at = token * params.expert_rows + first + place.thread;
        var value = total(place.thread, place);
        if params.add != 0u {
            value += y[at];
        }
        y[at] = value;
    }
}
