// The largest adjusted logit of each block of a row: penalties, bias and mask come first. A block per workgroup.
struct Params {
    rows: u32,
    cols: u32,
    // Blocks of a row, here and where noise is added.
    blocks: u32,
    wide_blocks: u32,
    // Words of a row's part of `work`.
    stride: u32,
    // Of missing weights.
    scale: f32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> choices: array<Choice>;
// Of each row with changes: where those of each block begin, one past the last of all, then token, count (SEEN if the repetition penalty
// applies) and bias of each. Of each row with a mask: its words.
@group(0) @binding(2) var<storage, read> lists: array<u32>;
// The token that was chosen last for each slot.
@group(0) @binding(3) var<storage, read> last: array<u32>;
@group(0) @binding(4) var<storage, read_write> adjusted: array<f32>;
@group(0) @binding(5) var<storage, read_write> work: array<u32>;

const SEEN: u32 = 0x80000000u;

var<workgroup> logits: array<f32, BLOCK>;
// What is known of the last token.
var<workgroup> last_count: u32;
var<workgroup> last_bias: f32;

fn penalised(logit: f32, count: u32, bias: f32, choice: Choice) -> f32 {
    var value = logit;
    if (count & SEEN) != 0u {
        value *= select(choice.repetition, choice.reciprocal, value > 0.0);
    }
    let generated = count & ~SEEN;
    if generated > 0u {
        value -= choice.presence + choice.frequency * f32(generated);
    }
    return min(value + bias, 3.4028234e38);
}

// Penalties and bias of a block's tokens. All threads of the workgroup must call it.
fn penalise(choice: Choice, block: u32, end: u32, place: Place) {
    let begin = block * BLOCK;
    if place.thread == 0u {
        last_count = 0u;
        last_bias = 0.0;
    }
    workgroupBarrier();
    var counted = NOBODY;
    if choice.counted != NOBODY {
        counted = last[choice.counted];
    }
    if choice.changes_at != NOBODY {
        let at = choice.changes_at;
        for (var i = lists[at + block] + place.thread; i < lists[at + block + 1u]; i += THREADS) {
            let token = lists[i * 3u + at + params.blocks + 1u];
            let count = lists[i * 3u + at + params.blocks + 2u];
            let bias = bitcast<f32>(lists[i * 3u + at + params.blocks + 3u]);
            if token == counted {
                last_count = count;
                last_bias = bias;
            } else {
                logits[token - begin] = penalised(logits[token - begin], count, bias, choice);
            }
        }
    }
    workgroupBarrier();
    if place.thread == 0u && counted >= begin && counted < end {
        let count = (last_count | SEEN) + 1u;
        logits[counted - begin] = penalised(logits[counted - begin], count, last_bias, choice);
    }
    workgroupBarrier();
}

fn is_allowed(choice: Choice, token: u32) -> bool {
    let n = token / 32u;
    if choice.allowed_at == NOBODY {
        return true;
    }
    return n < choice.allowed_len && (lists[choice.allowed_at + min(n, choice.allowed_len - 1u)] >> (token % 32u) & 1u) == 1u;
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let n = folded(place);
    let row = n / params.blocks;
    if row >= params.rows {
        return;
    }
    let choice = choices[row];
    let block = n % params.blocks;
    if block == 0u && is_filtered(choice) {
        for (var i = place.thread; i <= 2u * BINS; i += THREADS) {
            work[histogram_at(row) + i] = 0u;
        }
    }
    let begin = block * BLOCK;
    let end = min(begin + BLOCK, params.cols);
    for (var token = begin + place.thread; token < end; token += THREADS) {
        logits[token - begin] = x[row * params.cols + token];
    }
    if choice.changes_at != NOBODY || choice.counted != NOBODY {
        penalise(choice, block, end, place);
    }
    var own = Candidate(0u, NOBODY);
    for (var token = begin + place.thread; token < end; token += THREADS) {
        var key = key_of(x[row * params.cols + token], UNSOUND_KEY);
        if key < INFINITE_KEY {
            key = key_of(logits[token - begin], UNSOUND_KEY);
            if !is_allowed(choice, token) {
                key = LEAST_KEY;
            }
            if choice.adjusted != NOBODY {
                adjusted[choice.adjusted * params.cols + token] = value_of(key);
            }
        } else {
            key = UNSOUND_KEY;
        }
        let candidate = Candidate(key, token);
        if before(candidate, own) {
            own = candidate;
        }
    }
    let largest = workgroup_best(own, place);
    if place.thread == 0u {
        work[largest_at(row, block)] = largest.key;
        work[largest_at(row, block) + 1u] = largest.index;
    }
}
