// Puts the splits of attention together: one row of one head per workgroup.
struct Params {
    // Rows times heads of this sequence, and where they begin in y.
    rows: u32,
    first: u32,
    width: u32,
    splits: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

// [split][row][max, sum, values]
@group(0) @binding(0) var<storage, read> partial: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let row = folded(place);
    if row >= params.rows {
        return;
    }
    let stride = params.width + 2u;
    var largest = LOWEST;
    for (var s = 0u; s < params.splits; s++) {
        largest = max(largest, partial[(s * params.rows + row) * stride]);
    }
    var sum = 0.0;
    for (var s = 0u; s < params.splits; s++) {
        let at = (s * params.rows + row) * stride;
        sum += partial[at + 1u] * exp(partial[at] - largest);
    }
    for (var c = place.thread; c < params.width; c += THREADS) {
        var value = 0.0;
        for (var s = 0u; s < params.splits; s++) {
            let at = (s * params.rows + row) * stride;
            value += partial[at + 2u + c] * exp(partial[at] - largest);
        }
        y[(params.first + row) * params.width + c] = value / sum;
    }
}
