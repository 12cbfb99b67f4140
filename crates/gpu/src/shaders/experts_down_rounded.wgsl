// y[r] = (residual[r] +) sum_k w[k] Wdown_e[r] . h[k], e the expert of slot k, for one token; h comes rounded. All slots' groups are one long
// row; a workgroup has ROWS of them, and a thread one group of each.
const TOTALS: u32 = ROWS;

struct Params {
    row_words: u32,
    row_scales: u32,
    cols: u32,
    eights: u32,
    // Rows of one expert.
    expert_rows: u32,
    slots: u32,
    has_residual: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

// Digits of every eight inputs; behind those of all slots, the scales and the sums of every two sixteens.
@group(0) @binding(2) var<storage, read> h: array<vec4<u32>>;
// Experts of the slots, then the bits of their weights.
@group(0) @binding(3) var<storage, read> routes: array<u32>;
@group(0) @binding(4) var<storage, read> residual: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let first = folded(place) * ROWS;
    let per = params.eights / 4u;
    let groups = params.slots * per;
    let last = params.expert_rows - 1u;
    wait_for_inputs(place);
    let beside = residual[ready(params.has_residual * min(first + min(place.thread, ROWS - 1u), last))];
    for (var r = 0u; r < ROWS; r++) {
        totals[r] = 0.0;
    }
    // One pass, unless there are more groups than threads.
    for (var start = 0u; start < select(1u, groups, LONG == 1u); start += THREADS) {
        let real = start + place.thread < groups;
        let group = min(start + place.thread, groups - 1u);
        let slot = group / per;
        let expert = routes[ready(slot)];
        let weight = select(0.0, bitcast<f32>(routes[ready(params.slots + slot)]), real);
        let input = Digits(h[ready(4u * group)], h[ready(4u * group + 1u)], h[ready(4u * group + 2u)], h[ready(4u * group + 3u)]);
        let own_scales = h[ready(4u * groups + group)];
        var held: array<Codes, ROWS>;
        var pairs: array<vec2<f32>, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            let row = expert * params.expert_rows + min(first + r, last);
            held[r] = codes32(row, group - slot * per);
            pairs[r] = scale(row, 4u * (group - slot * per));
        }
        let one = weight * bitcast<f32>(own_scales.x);
        let two = weight * bitcast<f32>(own_scales.z);
        for (var r = 0u; r < ROWS; r++) {
            totals[r] += one * scaled(first_dot(held[r], input.a, input.b), pairs[r], bitcast<i32>(own_scales.y))
                + two * scaled(second_dot(held[r], input.c, input.d), pairs[r], bitcast<i32>(own_scales.w));
        }
    }
    publish_totals(place);
    if place.thread < ROWS && first + place.thread <= last {
        y[first + place.thread] = total(place.thread, place) + select(0.0, beside, params.has_residual != 0u);
    }
    announce(place);
}
