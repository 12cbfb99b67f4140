// The largest value of each block of a row, ties to the lower column. One block of one row per workgroup. What is not a number comes
// before all others.
struct Params {
    rows: u32,
    // Values of a row, of a block, and blocks of a row.
    cols: u32,
    block: u32,
    blocks: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
// [row][block]
@group(0) @binding(1) var<storage, read_write> ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let n = folded(place);
    let row = n / params.blocks;
    if row >= params.rows {
        return;
    }
    let begin = n % params.blocks * params.block;
    let end = min(begin + params.block, params.cols);
    var own = Candidate(0u, NOBODY);
    for (var c = begin + place.thread; c < end; c += THREADS) {
        let candidate = Candidate(key_of(x[row * params.cols + c], 0xffffffffu), c);
        if before(candidate, own) {
            own = candidate;
        }
    }
    let best = workgroup_best(own, place);
    if place.thread == 0u {
        ids[n] = best.index;
        values[n] = value_of(best.key);
    }
}
