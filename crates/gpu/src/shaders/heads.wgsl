// y[t, h, r] = W[h][r] . x[t, h], one matrix per head.
const TOTALS: u32 = ROWS;

struct Params {
    row_words: u32,
    row_scales: u32,
    cols: u32,
    eights: u32,
    // Rows of all heads in this part: its first, and one past its last.
    first: u32,
    end: u32,
    // Rows of one head.
    head_rows: u32,
    tokens: u32,
    heads: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    // x row: token and head together.
    let item = place.workgroup.y + place.workgroup.z * place.grid.y;
    if item >= params.tokens * params.heads {
        return;
    }
    let row = item % params.heads * params.head_rows + place.workgroup.x * ROWS;
    if row < params.first || row >= params.end {
        return;
    }
    let last = min(params.head_rows - place.workgroup.x * ROWS, ROWS) - 1u;
    for (var k = 0u; k < TOTALS; k++) {
        totals[k] = 0.0;
    }
    for (var i = place.thread; i < params.eights; i += THREADS) {
        let input = input8(item, i);
        let sum = sum8(input);
        for (var r = 0u; r < ROWS; r++) {
            let at = row - params.first + min(r, last);
            let s = scale(at, i);
            totals[r] += s.x * dot8(codes8(at, i), input) + s.y * sum;
        }
    }
    publish_totals(place);
    if place.thread <= last {
        y[item * params.head_rows + place.workgroup.x * ROWS + place.thread] = total(place.thread, place);
    }
}
