// The first 2 * `pairs` channels of every head turn by the angles of the token's position; the others are copied.
struct Params {
    len: u32,
    cols: u32,
    width: u32,
    pairs: u32,
    // Where this embedding's angles begin.
    first_angle: u32,
    // Whether pairs are (2i, 2i + 1), not (i, i + pairs).
    interleaved: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
// Cosine and sine, factor included, for each token and pair.
@group(0) @binding(1) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let i = folded(place) * THREADS + place.thread;
    if i >= params.len {
        return;
    }
    let channel = i % params.cols % params.width;
    if channel >= 2u * params.pairs {
        y[i] = x[i];
        return;
    }
    var pair = channel % params.pairs;
    var second = channel >= params.pairs;
    var distance = params.pairs;
    if params.interleaved != 0u {
        pair = channel / 2u;
        second = (channel & 1u) == 1u;
        distance = 1u;
    }
    let turn = angles[params.first_angle + i / params.cols * params.pairs + pair];
    if second {
        y[i] = x[i - distance] * turn.y + x[i] * turn.x;
    } else {
        y[i] = x[i] * turn.x - x[i + distance] * turn.y;
    }
}
