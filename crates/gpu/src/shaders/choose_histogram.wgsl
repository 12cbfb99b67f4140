// How many tokens of each row are how likely, for top-k and top-p: in bins of `z`, their number and the sum of their weights. A wide block of
// a row per workgroup. Sums are of whole numbers, so that their order does not matter.
struct Params {
    rows: u32,
    cols: u32,
    blocks: u32,
    wide_blocks: u32,
    stride: u32,
    scale: f32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> choices: array<Choice>;
@group(0) @binding(2) var<storage, read> adjusted: array<f32>;
@group(0) @binding(3) var<storage, read_write> work: array<atomic<u32>>;

var<workgroup> counts: array<atomic<u32>, BINS>;
var<workgroup> missings: array<atomic<u32>, BINS>;

fn work_at(i: u32) -> u32 {
    return atomicLoad(&work[i]);
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let n = folded(place);
    let row = n / params.wide_blocks;
    if row >= params.rows {
        return;
    }
    let choice = choices[row];
    if !is_filtered(choice) {
        return;
    }
    for (var bin = place.thread; bin < BINS; bin += THREADS) {
        atomicStore(&counts[bin], 0u);
        atomicStore(&missings[bin], 0u);
    }
    let largest = row_largest(row, place);
    if !is_sound(largest) {
        return;
    }
    let begin = n % params.wide_blocks * BLOCK;
    let end = min(begin + BLOCK, params.cols);
    for (var token = begin + place.thread; token < end; token += THREADS) {
        let z = z_of(logit_of(row, token, choice), value_of(largest.key), choice);
        let bin = step_of(z) / BIN_STEPS;
        if bin < BINS {
            atomicAdd(&counts[bin], 1u);
            atomicAdd(&missings[bin], u32(missing(z, bin) * params.scale + 0.5));
        }
    }
    workgroupBarrier();
    let at = histogram_at(row);
    for (var bin = place.thread; bin < BINS; bin += THREADS) {
        let count = atomicLoad(&counts[bin]);
        if count > 0u {
            atomicAdd(&work[at + bin], count);
            atomicAdd(&work[at + BINS + bin], atomicLoad(&missings[bin]));
        }
    }
}
