// The best token of each wide block of a row with its noise, of those that filters leave for sure; tokens that they may leave are listed.
// A wide block per workgroup.
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
    if choice.draws == 0u {
        return;
    }
    let largest = row_largest(row, place);
    if !is_sound(largest) {
        return;
    }
    // Tokens out of reach are never drawn: the noise of two differs by less than 27.
    var bounds = Bounds(BINS, BINS, BINS);
    if is_filtered(choice) {
        bounds = bounds_of(row_histogram(row, place), choice, place);
    }
    // The likeliest token is always left.
    var best = Noisy(gumbel(noise_bits(choice, largest.index)), largest.index);
    let block = n % params.wide_blocks;
    let begin = block * BLOCK;
    let end = min(begin + BLOCK, params.cols);
    for (var token = begin + place.thread; token < end; token += THREADS) {
        let z = z_of(logit_of(row, token, choice), value_of(largest.key), choice);
        let bin = step_of(z) / BIN_STEPS;
        if is_uncertain(bounds, bin) {
            let place_in_list = atomicAdd(&work[listed_at(row)], 1u);
            if place_in_list < LISTED {
                atomicStore(&work[listed_at(row) + 1u + place_in_list], token);
            }
        } else if bin < bounds.certain && z >= choice.floor {
            best = better(best, z, token, choice);
        }
    }
    let candidate = workgroup_best(Candidate(key_of(best.score, 0u), best.token), place);
    if place.thread == 0u {
        atomicStore(&work[noisy_at(row, block)], candidate.key);
        atomicStore(&work[noisy_at(row, block) + 1u], candidate.index);
    }
}
