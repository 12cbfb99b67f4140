// Which tokens top-k and top-p leave, from a histogram of likelihoods. A thread has four bins.
struct Histogram {
    counts: vec4<u32>,
    // Sums of e^z.
    masses: vec4<f32>,
    // What comes before them.
    count: u32,
    mass: f32,
}

var<workgroup> scanned_counts: array<u32, THREADS>;
var<workgroup> scanned_masses: array<f32, THREADS>;
var<workgroup> first_found: atomic<u32>;

// The sums of what the threads before have. All threads of the workgroup must call these.
fn counts_before(own: u32, place: Place) -> u32 {
    var sum = own;
    for (var distance = 1u; distance < THREADS; distance *= 2u) {
        scanned_counts[place.thread] = sum;
        workgroupBarrier();
        if place.thread >= distance {
            sum += scanned_counts[place.thread - distance];
        }
        workgroupBarrier();
    }
    return sum - own;
}

fn masses_before(own: f32, place: Place) -> f32 {
    var sum = own;
    var rest = 0.0;
    for (var distance = 1u; distance < THREADS; distance *= 2u) {
        scanned_masses[place.thread] = sum;
        workgroupBarrier();
        if place.thread >= distance {
            let other = scanned_masses[place.thread - distance];
            rest += other;
            sum += other;
        }
        workgroupBarrier();
    }
    // Not `sum - own`, which rounds.
    return rest;
}

// The least of all threads' numbers.
fn first_of(own: u32, place: Place) -> u32 {
    if place.thread == 0u {
        atomicStore(&first_found, NOBODY);
    }
    workgroupBarrier();
    if own != NOBODY {
        atomicMin(&first_found, own);
    }
    workgroupBarrier();
    let first = atomicLoad(&first_found);
    workgroupBarrier();
    return first;
}

// e^(-bin / 16)
fn weight_of(bin: u32) -> f32 {
    // -x = r - k ln 2, ln 2 in two parts so that the first product is exact.
    let x = f32(bin) * 0.0625;
    let k = floor(x * 1.442695 + 0.5);
    let r = (k * 0.693359375 - x) - k * 2.1219444e-4;
    let series = 1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0 + r / 5040.0)));
    return (1.0 + r * (1.0 + r * (0.5 + r * series))) * bitcast<f32>((127u - u32(k)) << 23u);
}

// A row's histogram. `work_at` is the kernel's own.
fn row_histogram(row: u32, place: Place) -> Histogram {
    var own = Histogram();
    let at = histogram_at(row);
    for (var i = 0u; i < 4u; i++) {
        let bin = 4u * place.thread + i;
        let count = work_at(at + bin);
        own.counts[i] = count;
        own.masses[i] = weight_of(bin) * (f32(count) - f32(work_at(at + BINS + bin)) / params.scale);
    }
    own.count = counts_before(own.counts.x + own.counts.y + own.counts.z + own.counts.w, place);
    own.mass = masses_before(own.masses.x + own.masses.y + own.masses.z + own.masses.w, place);
    return own;
}

// The first bin with which there are so many tokens, or BINS.
fn bin_of_count(histogram: Histogram, wanted: u32, place: Place) -> u32 {
    var found = NOBODY;
    var sum = histogram.count;
    for (var i = 0u; i < 4u; i++) {
        sum += histogram.counts[i];
        if found == NOBODY && sum >= wanted {
            found = 4u * place.thread + i;
        }
    }
    return min(first_of(found, place), BINS);
}

// The first bin with which there is so much mass, or BINS.
fn bin_of_mass(histogram: Histogram, wanted: f32, place: Place) -> u32 {
    var found = NOBODY;
    var sum = histogram.mass;
    for (var i = 0u; i < 4u; i++) {
        sum += histogram.masses[i];
        if found == NOBODY && sum >= wanted {
            found = 4u * place.thread + i;
        }
    }
    return min(first_of(found, place), BINS);
}

// What comes before a bin.
struct Sums {
    count: u32,
    mass: f32,
}

fn sums_before(histogram: Histogram, bin: u32, place: Place) -> Sums {
    if place.thread == min(bin / 4u, THREADS - 1u) {
        var sums = Sums(histogram.count, histogram.mass);
        for (var i = 0u; 4u * place.thread + i < bin; i++) {
            sums.count += histogram.counts[i];
            sums.mass += histogram.masses[i];
        }
        scanned_counts[0] = sums.count;
        scanned_masses[0] = sums.mass;
    }
    workgroupBarrier();
    let sums = Sums(scanned_counts[0], scanned_masses[0]);
    workgroupBarrier();
    return sums;
}

// Bins between which top-k and top-p draw their lines: tokens of those before `certain` are left for sure. Where the lines are in a bin, the
// tokens themselves must tell.
struct Bounds {
    // The bin of the last token that top-k leaves, or BINS.
    kth: u32,
    // Bins that may have the last one that top-p leaves of these: from `certain` to `last`.
    certain: u32,
    last: u32,
}

fn bounds_of(histogram: Histogram, choice: Choice, place: Place) -> Bounds {
    var bounds = Bounds(BINS, 0u, 0u);
    if choice.top_k > 0u {
        bounds.kth = bin_of_count(histogram, choice.top_k, place);
    }
    bounds.certain = bounds.kth;
    bounds.last = bounds.kth;
    if choice.top_p < 1.0 {
        let least = sums_before(histogram, bounds.kth, place).mass;
        let most = sums_before(histogram, min(bounds.kth + 1u, BINS), place).mass;
        bounds.certain = min(bin_of_mass(histogram, choice.top_p * least, place), bounds.kth);
        bounds.last = min(bin_of_mass(histogram, choice.top_p * most, place), bounds.kth);
    }
    return bounds;
}

// Whether where a token's bin is does not say if it is left.
fn is_uncertain(bounds: Bounds, bin: u32) -> bool {
    return bin < BINS && (bin == bounds.kth || (bin >= bounds.certain && bin <= bounds.last));
}
