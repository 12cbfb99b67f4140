// Products of TILE_ROWS rows of a weight with TILE_TOKENS inputs on the GPU's matrix units: STEP columns at a time go through shared memory
// as halves, and 16 x 16 pieces are multiplied by whole subgroups, of which there are SUBGROUPS. Inputs are divided by a factor
// of their token first, so that no outlier is too large for a half.
const TILE_ROWS: u32 = 64u;
const TILE_TOKENS: u32 = 16u * SHARE;
const STEP: u32 = 32u;
// From row to row in shared memory: a little more, so that neighbours do not lie in the same bank.
const STRIDE: u32 = 40u;
const NO_INPUT: u32 = 0xffffffffu;
const SUBGROUPS: u32 = THREADS / 32u;
// Pieces of a subgroup.
const PIECES: u32 = (4u * SHARE + SUBGROUPS - 1u) / SUBGROUPS;

// [row][column], [token][column], [row][token]
var<workgroup> tile_weights: array<f16, TILE_ROWS * STRIDE>;
var<workgroup> tile_inputs: array<f16, TILE_TOKENS * STRIDE>;
var<workgroup> tile_results: array<f32, TILE_ROWS * TILE_TOKENS>;
// Sums of the thread's four rows for each of its tokens.
var<private> tile_sums: array<vec4<f32>, SHARE>;

// Rows `first..end` of the weight. All threads of the workgroup must call it.
fn multiply_tile(first: u32, end: u32, place: Place) {
    let thread = place.thread;
    let row = thread / 4u;
    let column = thread % 4u * 8u;
    // Where there are fewer pieces than subgroups, some do the same: all must take part.
    let piece = min(place.subgroup * PIECES, 4u * SHARE - PIECES);
    let row_piece = piece / SHARE * 16u * STRIDE;
    let token_piece = piece % SHARE * 16u * STRIDE;
    var a_sum = coop_mat16x16<f32, C>();
    var b_sum = coop_mat16x16<f32, C>();
    for (var start = 0u; start < params.eights; start += STEP / 8u) {
        let i = start + thread % 4u;
        var weights = Eight(vec4(0.0), vec4(0.0));
        if i < params.eights && first + row < end {
            let codes = codes8(first + row, i);
            let s = scale(first + row, i);
            weights = Eight(s.x * codes.a + s.y, s.x * codes.b + s.y);
        }
        for (var k = 0u; k < 4u; k++) {
            tile_weights[row * STRIDE + column + k] = f16(weights.a[k]);
            tile_weights[row * STRIDE + column + k + 4u] = f16(weights.b[k]);
        }
        for (var n = thread; n < TILE_TOKENS * 4u; n += THREADS) {
            let source = tile_input(n / 4u);
            let at = start + n % 4u;
            var input = Eight(vec4(0.0), vec4(0.0));
            if source != NO_INPUT && at < params.eights {
                let factor = 1.0 / factors[source];
                input = input8(source, at);
                input = Eight(input.a * factor, input.b * factor);
            }
            let input_start = n / 4u * STRIDE + n % 4u * 8u;
            for (var k = 0u; k < 4u; k++) {
                tile_inputs[input_start + k] = f16(input.a[k]);
                tile_inputs[input_start + k + 4u] = f16(input.b[k]);
            }
        }
        workgroupBarrier();
        for (var k = 0u; k < STEP; k += 16u) {
            let w = coopLoadT<coop_mat16x16<f16, A>>(&tile_weights[row_piece + k], STRIDE);
            let x0 = coopLoad<coop_mat16x16<f16, B>>(&tile_inputs[token_piece + k], STRIDE);
            a_sum = coopMultiplyAdd(w, x0, a_sum);
            if PIECES == 2u {
                let x1 = coopLoad<coop_mat16x16<f16, B>>(&tile_inputs[token_piece + 16u * STRIDE + k], STRIDE);
                b_sum = coopMultiplyAdd(w, x1, b_sum);
            }
        }
        workgroupBarrier();
    }
    let at = piece / SHARE * 16u * TILE_TOKENS + piece % SHARE * 16u;
    coopStoreT(a_sum, &tile_results[at], TILE_TOKENS);
    if PIECES == 2u {
        coopStoreT(b_sum, &tile_results[at + 16u], TILE_TOKENS);
    }
    workgroupBarrier();
    for (var j = 0u; j < SHARE; j++) {
        let token = thread % 16u + 16u * j;
        let source = tile_input(token);
        for (var k = 0u; k < 4u; k++) {
            tile_sums[j][k] = 0.0;
            if source != NO_INPUT {
                tile_sums[j][k] = tile_results[(thread / 16u * 4u + k) * TILE_TOKENS + token] * factors[source];
            }
        }
    }
}
