// How a token is chosen from each row of logits: the rules of `backend::Choice`. A kernel has bindings `x`, `choices` and `adjusted`.
struct Choice {
    // Slot whose last token this one becomes, and the slot whose last token penalties count, too; or NOBODY.
    slot: u32,
    counted: u32,
    // Row of `adjusted` that replaces the row of `x`, or NOBODY.
    adjusted: u32,
    // Where changed logits and allowed tokens begin in `lists`, or NOBODY; words of the latter.
    changes_at: u32,
    allowed_at: u32,
    allowed_len: u32,
    // Whether a token is drawn; else it is the likeliest.
    draws: u32,
    // The k of top-k; 0 is off.
    top_k: u32,
    // The key of the noise.
    key_first: u32,
    key_second: u32,
    repetition: f32,
    // 1 / repetition
    reciprocal: f32,
    presence: f32,
    frequency: f32,
    // 1 / temperature
    factor: f32,
    // 1 is off.
    top_p: f32,
    // Least `z` that min-p leaves.
    floor: f32,
}

// Keys of minus infinity, infinity, and of what is neither a number nor infinity.
const LEAST_KEY: u32 = 0x007fffffu;
const INFINITE_KEY: u32 = 0xff800000u;
const UNSOUND_KEY: u32 = 0xffffffffu;

// Steps of likelihoods for each 1 of `z`, and the step of all tokens out of reach.
const STEPS: f32 = 32768.0;
const FURTHEST: u32 = 64u << 15u;

// A histogram of likelihoods has so many steps in a bin, which is 1/16 of `z`.
const BIN_STEPS: u32 = 2048u;
const BINS: u32 = 1024u;

// Tokens of a row that are listed at most; if there are more, the row itself is gone through.
const LISTED: u32 = 16384u;

// What the kernels leave each other in a row's part of `work`: the largest logit of each block (key and token), the best of each wide block
// with its noise (key and token), the histogram (counts, then missing weights), how many tokens are listed, and which.
fn largest_at(row: u32, block: u32) -> u32 {
    return row * params.stride + 2u * block;
}

fn noisy_at(row: u32, block: u32) -> u32 {
    return largest_at(row, params.blocks) + 2u * block;
}

fn histogram_at(row: u32) -> u32 {
    return noisy_at(row, params.wide_blocks);
}

fn listed_at(row: u32) -> u32 {
    return histogram_at(row) + 2u * BINS;
}

// Whether there is a largest logit to choose by.
fn is_sound(largest: Candidate) -> bool {
    return largest.key > LEAST_KEY && largest.key < INFINITE_KEY;
}

// Whether top-k or top-p leave tokens out.
fn is_filtered(choice: Choice) -> bool {
    return choice.draws == 1u && (choice.top_k > 0u || choice.top_p < 1.0);
}

// How far a logit is below the largest, in temperatures.
fn z_of(logit: f32, largest: f32, choice: Choice) -> f32 {
    return (logit - largest) * choice.factor;
}

fn step_of(z: f32) -> u32 {
    return u32(min(-z * STEPS, f32(FURTHEST)));
}

// 1 - e^z for z in a bin, relative to the bin's first: to some 1e-9.
fn missing(z: f32, bin: u32) -> f32 {
    let u = -z - f32(bin) * 0.0625;
    return u * (1.0 - u / 2.0 * (1.0 - u / 3.0 * (1.0 - u / 4.0 * (1.0 - u / 5.0))));
}
