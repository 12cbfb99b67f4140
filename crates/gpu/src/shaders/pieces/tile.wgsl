// Products of TILE_ROWS rows of a weight with TILE_TOKENS inputs, STEP columns at a time through shared memory. THREADS is 256: thread
// (i, j) of 16 x 16 has rows 4i to 4i + 3 and tokens j, j + 16, ..: SHARE of them.
const TILE_ROWS: u32 = 64u;
const TILE_TOKENS: u32 = 16u * SHARE;
const STEP: u32 = 32u;
const NO_INPUT: u32 = 0xffffffffu;

// [column][row / 4], [column][token]
var<workgroup> tile_weights: array<vec4<f32>, STEP * TILE_ROWS / 4u>;
var<workgroup> tile_inputs: array<f32, STEP * TILE_TOKENS>;
// Sums of the thread's four rows for each of its tokens.
var<private> tile_sums: array<vec4<f32>, SHARE>;

// Each kernel says which row of x token `i` of the tile is, or NO_INPUT, and what becomes of its products with PAIR neighbouring
// rows: the first and the last of them.
// fn tile_input(i: u32) -> u32
// fn tile_finish(i: u32, row: u32, products: vec2<f32>)

// Rows `first..end` of the weight. All threads of the workgroup must call it.
fn multiply_tile(first: u32, end: u32, place: Place) {
    let thread = place.thread;
    for (var j = 0u; j < SHARE; j++) {
        tile_sums[j] = vec4(0.0);
    }
    let row = thread / 4u;
    for (var start = 0u; start < params.eights; start += STEP / 8u) {
        let i = start + thread % 4u;
        var weights = Eight(vec4(0.0), vec4(0.0));
        if i < params.eights && first + row < end {
            let codes = codes8(first + row, i);
            let s = scale(first + row, i);
            weights = Eight(s.x * codes.a + s.y, s.x * codes.b + s.y);
        }
        let column = thread % 4u * 8u;
        for (var k = 0u; k < 4u; k++) {
            tile_weights[(column + k) * 16u + row / 4u][row % 4u] = weights.a[k];
            tile_weights[(column + k + 4u) * 16u + row / 4u][row % 4u] = weights.b[k];
        }
        for (var n = thread; n < TILE_TOKENS * 4u; n += THREADS) {
            let source = tile_input(n / 4u);
            let at = start + n % 4u;
            var input = Eight(vec4(0.0), vec4(0.0));
            if source != NO_INPUT && at < params.eights {
                input = input8(source, at);
            }
            for (var k = 0u; k < 4u; k++) {
                tile_inputs[(n % 4u * 8u + k) * TILE_TOKENS + n / 4u] = input.a[k];
                tile_inputs[(n % 4u * 8u + k + 4u) * TILE_TOKENS + n / 4u] = input.b[k];
            }
        }
        workgroupBarrier();
        for (var k = 0u; k < STEP; k++) {
            let w = tile_weights[k * 16u + thread / 16u];
            for (var j = 0u; j < SHARE; j++) {
                tile_sums[j] += w * tile_inputs[k * TILE_TOKENS + thread % 16u + 16u * j];
            }
        }
        workgroupBarrier();
    }
    for (var j = 0u; j < SHARE; j++) {
        let sums = tile_sums[j];
        for (var k = 0u; k < 4u; k += PAIR) {
            let of_tile = thread / 16u * 4u + k;
            if first + of_tile < end {
                tile_finish(thread % 16u + 16u * j, of_tile, vec2(sums[k], sums[k + PAIR - 1u]));
            }
        }
    }
}
