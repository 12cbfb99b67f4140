// y[r] = (residual[r] +) sum_k w[k] Wdown_e[r] . h[k], e the expert of slot k, for one token; h rounded. All slots' groups are one long row.
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

@group(0) @binding(2) var<storage, read> h: array<vec4<f32>>;
// Experts of the slots, then the bits of their weights.
@group(0) @binding(3) var<storage, read> routes: array<u32>;
@group(0) @binding(4) var<storage, read> residual: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

const TEAMS: u32 = THREADS / LANES;

fn input8(e: u32, local: u32) -> Eight {
    return Eight(h[2u * e], h[2u * e + 1u]);
}

fn group_factor(group: u32) -> f32 {
    return bitcast<f32>(routes[params.slots + 4u * group / params.eights]);
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let lane = lane_of(place);
    let first = (folded(place) * TEAMS + team_of(place)) * ROWS;
    let per = params.eights / 4u;
    let groups = params.slots * per;
    var sums: array<f32, ROWS>;
    var besides: array<f32, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        sums[r] = 0.0;
        // What is added at the end, asked for at the beginning.
        besides[r] = 0.0;
        if params.has_residual != 0u {
            besides[r] = residual[min(first + r, params.expert_rows - 1u)];
        }
    }
    for (var start = 0u; start < groups; start += ROOM) {
        let count = min(ROOM, groups - start);
        load_input(start, count, place);
        var held: array<Codes, ROWS * STEPS>;
        var pairs: array<vec2<f32>, ROWS * STEPS>;
        for (var step = 0u; step < STEPS; step++) {
            let group = step * LANES + lane;
            if group < count {
                let expert = routes[(start + group) / per];
                let within = (start + group) % per;
                for (var r = 0u; r < ROWS; r++) {
                    let row = expert * params.expert_rows + min(first + r, params.expert_rows - 1u);
                    held[step * ROWS + r] = codes32(row, within);
                    pairs[step * ROWS + r] = scale(row, 4u * within);
                }
            }
        }
        round_input(start, count, place);
        workgroupBarrier();
        for (var step = 0u; step < STEPS; step++) {
            let group = step * LANES + lane;
            if group < count {
                let input = digits_of(group);
                for (var r = 0u; r < ROWS; r++) {
                    sums[r] += group_product(held[step * ROWS + r], pairs[step * ROWS + r], input, group);
                }
            }
        }
        if groups > ROOM {
            workgroupBarrier();
        }
    }
    for (var r = 0u; r < ROWS; r++) {
        sums[r] = team_sum(sums[r], place);
    }
    if lane == 0u {
        for (var r = 0u; r < ROWS; r++) {
            if first + r < params.expert_rows {
                y[first + r] = besides[r] + sums[r];
            }
        }
    }
}
