// A power of two for each row, no less than any of its values and at most twice the largest.
struct Params {
    rows: u32,
    cols: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> factors: array<f32>;

var<workgroup> largest: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let row = folded(place);
    if row >= params.rows {
        return;
    }
    var own = 0.0;
    for (var c = place.thread; c < params.cols; c += THREADS) {
        own = max(own, abs(x[row * params.cols + c]));
    }
    largest[place.thread] = own;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if place.thread < half {
            largest[place.thread] = max(largest[place.thread], largest[place.thread + half]);
        }
        workgroupBarrier();
    }
    if place.thread == 0u {
        // The next exponent; one where there is nothing but zeros, and no infinity.
        let exponent = clamp((bitcast<u32>(largest[0]) >> 23u) + 1u, 2u, 253u);
        factors[row] = bitcast<f32>(exponent << 23u);
    }
}
