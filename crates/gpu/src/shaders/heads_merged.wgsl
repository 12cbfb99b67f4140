// y[t, h, r] = W[h][r] . x[t, h] for spans of one token, one matrix per head, where x[t, h] is what the parts of attention have of it, put together. A
// thread has an eight of it.
const TOTALS: u32 = ROWS;

struct Params {
    row_words: u32,
    row_scales: u32,
    cols: u32,
    eights: u32,
    // Rows of one head.
    head_rows: u32,
    heads: u32,
    // Spans from this one on, of which longer ones are not taken.
    first_span: u32,
    spans: u32,
    // 0: there is none.
    window: u32,
    // Positions of a part.
    part_len: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

// [part][span][head][max, sum, values]
@group(0) @binding(2) var<storage, read> partial: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> steps: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

// Parts that are loaded at once.
const AHEAD: u32 = 4u;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let head = place.workgroup.y;
    let number = place.workgroup.z;
    let span = span_of(params.first_span + number);
    if span.len != 1u {
        announce(place);
        return;
    }
    let parts = parts_of(span);
    let first = place.workgroup.x * ROWS;
    let last = min(params.head_rows - first, ROWS) - 1u;
    let real = place.thread < params.eights;
    let eight = min(place.thread, params.eights - 1u);
    // Asked for before the input is there.
    var held: array<Eight, ROWS>;
    var pairs: array<vec2<f32>, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        let row = head * params.head_rows + first + min(r, last);
        held[r] = codes8(row, eight);
        pairs[r] = scale(row, eight);
    }
    wait_for_inputs(place);
    let stride = params.cols / 2u + 1u;
    var largest = LOWEST;
    var sum = 0.0;
    var input = Eight(vec4(0.0), vec4(0.0));
    for (var start = 0u; start < parts; start += AHEAD) {
        var tops: array<vec2<f32>, AHEAD>;
        var loaded: array<Eight, AHEAD>;
        for (var i = 0u; i < AHEAD; i++) {
            let part = min(start + i, parts - 1u) * params.spans + number;
            let first = ready((part * params.heads + head) * stride);
            let own = first + 1u + 4u * eight;
            tops[i] = partial[first];
            loaded[i] = Eight(vec4(partial[own], partial[own + 1u]), vec4(partial[own + 2u], partial[own + 3u]));
        }
        for (var i = 0u; i < AHEAD; i++) {
            let next = max(largest, tops[i].x);
            let keep = exp(largest - next);
            let weight = select(0.0, exp(tops[i].x - next), start + i < parts);
            largest = next;
            sum = sum * keep + weight * tops[i].y;
            input = Eight(input.a * keep + weight * loaded[i].a, input.b * keep + weight * loaded[i].b);
        }
    }
    let factor = select(0.0, 1.0 / sum, real);
    input = Eight(factor * input.a, factor * input.b);
    let all = sum8(input);
    for (var r = 0u; r < ROWS; r++) {
        totals[r] = pairs[r].x * dot8(held[r], input) + pairs[r].y * all;
    }
    publish_totals(place);
    if place.thread <= last {
        y[(span.row * params.heads + head) * params.head_rows + first + place.thread] = total(place.thread, place);
    }
    announce(place);
}
