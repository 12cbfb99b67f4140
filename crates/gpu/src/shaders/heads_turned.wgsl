// y[t, h, c] = sum_r W[h][r, c] x[t, h, r]: the matrices stored the other way round. A thread has eight columns.
struct Params {
    row_words: u32,
    row_scales: u32,
    cols: u32,
    eights: u32,
    // Rows of all heads in this part: its first, and one past its last.
    first: u32,
    end: u32,
    // Rows of one head.
    head_rows: u32,
    tokens: u32,
    heads: u32,
    // Whether another part has written y already.
    add: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let item = place.workgroup.y + place.workgroup.z * place.grid.y;
    let i = place.workgroup.x * THREADS + place.thread;
    if item >= params.tokens * params.heads || i >= params.eights {
        return;
    }
    let head = item % params.heads * params.head_rows;
    let begin = max(head, params.first);
    let end = min(head + params.head_rows, params.end);
    var a = vec4(0.0);
    var b = vec4(0.0);
    for (var row = begin; row < end; row++) {
        let input = x[item * params.head_rows + row - head];
        let values = codes8(row - params.first, i);
        let s = scale(row - params.first, i);
        a += input * (s.x * values.a + s.y);
        b += input * (s.x * values.b + s.y);
    }
    for (var k = 0u; k < 8u; k++) {
        let column = i * 8u + k;
        if column < params.cols && (begin < end || params.add == 0u) {
            let at = item * params.cols + column;
            var value = select(b[k & 3u], a[k & 3u], k < 4u);
            if params.add != 0u {
                value += y[at];
            }
            y[at] = value;
        }
    }
}
