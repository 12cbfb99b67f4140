// sums = residual + x; y = rms(sums) * weight * factor. One row per workgroup.
@group(0) @binding(4) var<storage, read_write> sums: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let row = folded(place);
    if row >= params.rows {
        return;
    }
    let start = row * params.width;
    var squares = vec2(0.0);
    for (var c = place.thread; c < params.width; c += THREADS) {
        let sum = residual[start + c] + x[start + c];
        sums[start + c] = sum;
        squares += squares_of(sum);
    }
    let inverse = inverse_rms(squares, params.width, params.eps, place);
    for (var c = place.thread; c < params.width; c += THREADS) {
        y[start + c] = with_factor(sums[start + c] * inverse * weight[c], c);
    }
}
