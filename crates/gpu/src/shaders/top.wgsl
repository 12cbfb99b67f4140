// The `k` largest values of a row, largest first, in two passes: first of each of its blocks, then (AGAIN) of what the blocks found. One
// block of one row per workgroup. What is not a number comes before all others.
struct Params {
    rows: u32,
    // Values of a row, of a block, and blocks of a row.
    cols: u32,
    block: u32,
    blocks: u32,
    k: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
// With AGAIN, the column of each value.
@group(0) @binding(1) var<storage, read> columns: array<u32>;
// [row][block][k]
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> values: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let n = folded(place);
    let row = n / params.blocks;
    if row >= params.rows {
        return;
    }
    let begin = n % params.blocks * params.block;
    let end = min(begin + params.block, params.cols);
    var last = Candidate(0u, NOBODY);
    for (var k = 0u; k < params.k; k++) {
        var own = Candidate(0u, NOBODY);
        for (var c = begin + place.thread; c < end; c += THREADS) {
            let value = x[row * params.cols + c];
            // The columns of a first pass ascend within a block, but not over all of what the blocks found.
            var column = c;
            if AGAIN == 1u {
                column = columns[row * params.cols + c];
            }
            let candidate = Candidate(key_of(value, 0xffffffffu), column);
            if column != NOBODY && (k == 0u || before(last, candidate)) && before(candidate, own) {
                own = candidate;
            }
        }
        last = workgroup_best(own, place);
        if place.thread == 0u {
            ids[n * params.k + k] = last.index;
            values[n * params.k + k] = value_of(last.key);
        }
        // All there are have been found: what is left of this block is nobody.
        if last.index == NOBODY {
            for (var rest = k + place.thread; rest < params.k; rest += THREADS) {
                ids[n * params.k + rest] = NOBODY;
            }
            break;
        }
    }
}
