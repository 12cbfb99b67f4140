// The token that is chosen from each row: the best of what its blocks found, and of the listed tokens that filters leave. A row per
// workgroup.
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
@group(0) @binding(3) var<storage, read> work: array<u32>;
@group(0) @binding(4) var<storage, read_write> last: array<u32>;
// Of each row the token and the bits of its logit.
@group(0) @binding(5) var<storage, read_write> chosen: array<u32>;

// Steps of one bin, and those that a thread has.
const OWN_STEPS: u32 = BIN_STEPS / THREADS;
var<workgroup> steps: array<atomic<u32>, BIN_STEPS>;

fn work_at(i: u32) -> u32 {
    return work[i];
}

// How many tokens there are to go through, and each of them: those listed, or all if these are too many.
fn gone_through(row: u32) -> u32 {
    let listed = work[listed_at(row)];
    return select(listed, params.cols, listed > LISTED);
}

fn nth(row: u32, n: u32) -> u32 {
    if work[listed_at(row)] > LISTED {
        return n;
    }
    return work[listed_at(row) + 1u + n];
}

// What fills the steps of a bin: one for each token, or its weight relative to the bin's, in units so small that all fit.
fn unit_of(tokens: u32, weights: bool) -> f32 {
    return select(1.0, f32(1u << min(24u, countLeadingZeros(tokens | 1u) - 1u)), weights);
}

// Fills the steps of a bin, and returns what those of the threads before this one have. All threads of the workgroup must call it.
fn fill(row: u32, choice: Choice, largest: f32, bin: u32, weights: bool, place: Place) -> u32 {
    for (var i = place.thread; i < BIN_STEPS; i += THREADS) {
        atomicStore(&steps[i], 0u);
    }
    workgroupBarrier();
    let tokens = gone_through(row);
    let unit = unit_of(tokens, weights);
    for (var i = place.thread; i < tokens; i += THREADS) {
        let z = z_of(logit_of(row, nth(row, i), choice), largest, choice);
        let step = step_of(z);
        if step / BIN_STEPS == bin {
            let weight = select(1.0, 1.0 - missing(z, bin), weights);
            atomicAdd(&steps[step % BIN_STEPS], u32(weight * unit + 0.5));
        }
    }
    workgroupBarrier();
    var own = 0u;
    for (var i = 0u; i < OWN_STEPS; i++) {
        own += atomicLoad(&steps[place.thread * OWN_STEPS + i]);
    }
    return counts_before(own, place);
}

// The first step of a bin with which there is so much, or its last.
fn step_with(filled: u32, wanted: u32, place: Place) -> u32 {
    var found = NOBODY;
    var sum = filled;
    for (var i = 0u; i < OWN_STEPS; i++) {
        sum += atomicLoad(&steps[place.thread * OWN_STEPS + i]);
        if found == NOBODY && sum >= wanted {
            found = place.thread * OWN_STEPS + i;
        }
    }
    return min(first_of(found, place), BIN_STEPS - 1u);
}

// What a bin has down to a step.
fn down_to(filled: u32, step: u32, place: Place) -> u32 {
    if place.thread == step / OWN_STEPS {
        var sum = filled;
        for (var i = place.thread * OWN_STEPS; i <= step; i++) {
            sum += atomicLoad(&steps[i]);
        }
        scanned_counts[0] = sum;
    }
    workgroupBarrier();
    let sum = scanned_counts[0];
    workgroupBarrier();
    return sum;
}

// The last step of likelihood that filters leave.
fn last_step(row: u32, choice: Choice, largest: f32, histogram: Histogram, bounds: Bounds, place: Place) -> u32 {
    var step = FURTHEST;
    let unit = unit_of(gone_through(row), true);
    var before_kth = sums_before(histogram, bounds.kth, place);
    var mass = before_kth.mass;
    if bounds.kth < BINS {
        let counted = fill(row, choice, largest, bounds.kth, false, place);
        let own = step_with(counted, choice.top_k - before_kth.count, place);
        step = bounds.kth * BIN_STEPS + own;
        if choice.top_p < 1.0 {
            let filled = fill(row, choice, largest, bounds.kth, true, place);
            mass += weight_of(bounds.kth) * f32(down_to(filled, own, place)) / unit;
        }
    }
    if choice.top_p < 1.0 {
        let wanted = choice.top_p * mass;
        let bin = clamp(bin_of_mass(histogram, wanted, place), bounds.certain, bounds.last);
        if bin < BINS {
            let filled = fill(row, choice, largest, bin, true, place);
            let rest = (wanted - sums_before(histogram, bin, place).mass) / weight_of(bin) * unit;
            let own = step_with(filled, u32(clamp(ceil(rest), 0.0, 4294967040.0)), place);
            step = min(step, bin * BIN_STEPS + own);
        }
    }
    return step;
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let row = folded(place);
    if row >= params.rows {
        return;
    }
    let choice = choices[row];
    let largest = row_largest(row, place);
    var token = largest.index;
    if DRAWS == 1u && choice.draws == 1u && is_sound(largest) {
        var found = Candidate(0u, NOBODY);
        for (var block = place.thread; block < params.wide_blocks; block += THREADS) {
            let at = noisy_at(row, block);
            let candidate = Candidate(work[at], work[at + 1u]);
            if before(candidate, found) {
                found = candidate;
            }
        }
        if is_filtered(choice) {
            let value = value_of(largest.key);
            let histogram = row_histogram(row, place);
            let bounds = bounds_of(histogram, choice, place);
            let last_kept = last_step(row, choice, value, histogram, bounds, place);
            var best = Noisy(-100.0, NOBODY);
            let tokens = gone_through(row);
            for (var i = place.thread; i < tokens; i += THREADS) {
                let own = nth(row, i);
                let z = z_of(logit_of(row, own, choice), value, choice);
                let step = step_of(z);
                if step <= last_kept && is_uncertain(bounds, step / BIN_STEPS) && z >= choice.floor {
                    best = better(best, z, own, choice);
                }
            }
            let candidate = Candidate(key_of(best.score, 0u), best.token);
            if before(candidate, found) {
                found = candidate;
            }
        }
        token = workgroup_best(found, place).index;
    }
    if place.thread == 0u {
        chosen[2u * row] = token;
        var logit = x[row * params.cols + token];
        if largest.key == LEAST_KEY {
            logit = value_of(LEAST_KEY);
        }
        chosen[2u * row + 1u] = bitcast<u32>(logit);
        if choice.slot != NOBODY {
            last[choice.slot] = token;
        }
    }
}
