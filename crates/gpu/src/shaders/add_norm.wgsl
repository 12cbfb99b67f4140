// s = r + x; y = rms(s) * w * factor. One row per workgroup.
@group(0) @binding(4) var<storage, read_write> s: array<f32>;
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
        let sum = r[start + c] + x[start + c];
        s[start + c] = sum;
        squares += squares_of(sum);
    }
    let inverse = inverse_rms(squares, params.width, params.eps, place);
    for (var c = place.thread; c < params.width; c += THREADS) {
        y[start + c] = with_factor(s[start + c] * inverse * w[c], c);
    }
}
