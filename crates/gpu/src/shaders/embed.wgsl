// y[t] = factor * table[token of t], for the rows of the table in this part. A thread has eight columns.
struct Params {
    row_words: u32,
    row_scales: u32,
    cols: u32,
    eights: u32,
    // Rows of the table in this part: its first, and one past its last.
    first: u32,
    end: u32,
    tokens: u32,
    // Where they are in `steps`. One that has FOLLOWS is the number of a place in `last`.
    tokens_at: u32,
    factor: f32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(2) var<storage, read> steps: array<u32>;
// The tokens that were chosen last.
@group(0) @binding(3) var<storage, read> last: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

const FOLLOWS: u32 = 0x80000000u;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let n = folded(place) * THREADS + place.thread;
    let token = n / params.eights;
    if token >= params.tokens {
        return;
    }
    var row = steps[params.tokens_at + token];
    if (row & FOLLOWS) != 0u {
        row = last[row ^ FOLLOWS];
    }
    if row < params.first || row >= params.end {
        return;
    }
    let i = n % params.eights;
    let values = codes8(row - params.first, i);
    let s = scale(row - params.first, i);
    for (var k = 0u; k < 8u; k++) {
        let column = i * 8u + k;
        if column < params.cols {
            y[token * params.cols + column] = params.factor * (s.x * select(values.b[k & 3u], values.a[k & 3u], k < 4u) + s.y);
        }
    }
}
