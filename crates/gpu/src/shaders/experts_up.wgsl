// For pair p of a token t and an expert e = ids[p]. With GATED, rows of gate and up alternate, and h[p, r] = act(Wgate_e[r] . x[t])
// * (Wup_e[r] . x[t]); without, h[p, r] = W_e[r] . x[t]. A workgroup takes ROWS rows.
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
    pairs: u32,
    top_k: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(3) var<storage, read> ids: array<u32>;
@group(0) @binding(4) var<storage, read_write> h: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let pair = place.workgroup.y + place.workgroup.z * place.grid.y;
    if pair >= params.pairs {
        return;
    }
    let row = ids[pair] * params.expert_rows + place.workgroup.x * ROWS;
    // The expert lies in another part: all threads leave.
    if row < params.first || row >= params.end {
        return;
    }
    let last = min(params.expert_rows - place.workgroup.x * ROWS, ROWS) - 1u;
    let first = row - params.first;
    for (var k = 0u; k < TOTALS; k++) {
        totals[k] = 0.0;
    }
    for (var i = place.thread; i < params.eights; i += THREADS) {
        let input = input8(pair / params.top_k, i);
        let sum = sum8(input);
        for (var r = 0u; r < ROWS; r++) {
            let at = first + min(r, last);
            let s = scale(at, i);
            totals[r] += s.x * dot8(codes8(at, i), input) + s.y * sum;
        }
    }
    publish_totals(place);
    let results = (last + 1u) / (1u + GATED);
    if place.thread < results {
        let at = (pair * params.expert_rows + place.workgroup.x * ROWS) / (1u + GATED) + place.thread;
        if GATED == 1u {
            h[at] = activate(total(2u * place.thread, place)) * total(2u * place.thread + 1u, place);
        } else {
            h[at] = total(place.thread, place);
        }
    }
}
