// Products of TILE_ROWS rows of a weight with TILE_TOKENS inputs on the GPU's matrix units: STEP columns at a time go through shared memory
// as halves, and 16 x 16 pieces are multiplied by whole subgroups, of which there are 8. Inputs are halves already, divided by a
// factor of their token.
const TILE_ROWS: u32 = 128u;
const TILE_TOKENS: u32 = 16u * SHARE;
const STEP: u32 = 32u;
const NO_INPUT: u32 = 0xffffffffu;
// Eights of a row in a step, and fours from row to row in shared memory: two more, so that neighbours do not lie in the same bank.
const EIGHTS: u32 = STEP / 8u;
const STRIDE: u32 = 2u * EIGHTS + 2u;
// Subgroups beside each other have the same rows and other tokens; pieces of each.
const BESIDE: u32 = select(1u, 2u, SHARE >= 4u);
const ROW_PIECES: u32 = BESIDE;
const TOKEN_PIECES: u32 = SHARE / BESIDE;
// Rows from one eight that a thread brings to its next, and eights that it brings.
const APART: u32 = THREADS / EIGHTS;
const OWN_WEIGHTS: u32 = TILE_ROWS / APART;
const OWN_INPUTS: u32 = (TILE_TOKENS + APART - 1u) / APART;

struct Halves {
    a: vec4<f16>,
    b: vec4<f16>,
}

// [row][column]
@group(0) @binding(2) var<storage, read> x: array<Halves>;

// [row][column], [token][column]
var<workgroup> tile_weights: array<vec4<f16>, TILE_ROWS * STRIDE>;
var<workgroup> tile_inputs: array<vec4<f16>, TILE_TOKENS * STRIDE>;
// A piece of each subgroup, [token][row].
var<workgroup> tile_results: array<f32, 2048>;

// Where the thread's rows and inputs are, and what it has brought of them.
// repeat j < 4
var<private> own_row_#j: u32;
var<private> own_input_#j: u32;
var<private> next_weights_#j: Halves;
var<private> next_inputs_#j: Halves;
// end repeat

fn weights8(row: u32, i: u32) -> Halves {
    let codes = codes8(row, i);
    let s = scale(row, i);
    return Halves(vec4<f16>(s.x * codes.a + s.y), vec4<f16>(s.x * codes.b + s.y));
}

fn input_place(i: u32) -> u32 {
    let source = tile_input(min(i, TILE_TOKENS - 1u));
    return select(source, 0u, source == NO_INPUT) * ((params.eights + 7u) / 8u * 8u);
}

// Brings the thread's eights of a step; beyond the last column, weights of 0 meet whatever was there.
fn bring(i: u32) {
    // repeat j < 4
    if #ju < OWN_WEIGHTS {
        if i < params.eights {
            next_weights_#j = weights8(own_row_#j, i);
        } else {
            next_weights_#j = Halves();
        }
    }
    if #ju < OWN_INPUTS && i < params.eights {
        next_inputs_#j = x[own_input_#j + i];
    }
    // end repeat
}

// Hands the piece that each subgroup has left in `tile_results` to the kernel.
fn finish_piece(first: u32, end: u32, row: u32, token: u32, place: Place) {
    workgroupBarrier();
    for (var n = place.lane * PAIR; n < 256u; n += 32u * PAIR) {
        let source = tile_input(token + n / 16u);
        let of_tile = row + n % 16u;
        if source != NO_INPUT && first + of_tile < end {
            let at = place.subgroup * 256u + n;
            tile_finish(token + n / 16u, of_tile, factors[source] * vec2(tile_results[at], tile_results[at + PAIR - 1u]));
        }
    }
    workgroupBarrier();
}

// Rows `first..end` of the weight. All threads of the workgroup must call it.
fn multiply_tile(first: u32, end: u32, place: Place) {
    let column = place.thread % EIGHTS;
    let row = place.thread / EIGHTS;
    // Rows that do not exist are the last one again, and not written; tokens that do not exist are the first.
    // repeat j < 4
    own_row_#j = min(first + row + #ju * APART, end - 1u);
    if #ju < OWN_INPUTS {
        own_input_#j = input_place(row + #ju * APART);
    }
    // end repeat
    let first_row = place.subgroup / BESIDE * ROW_PIECES * 16u;
    let first_token = place.subgroup % BESIDE * TOKEN_PIECES * 16u;
    // repeat t < 4
    // repeat r < 2
    var sum_#r_#t = coop_mat16x16<f32, C>();
    // end repeat
    // end repeat
    bring(column);
    for (var start = 0u; start < params.eights; start += EIGHTS) {
        // repeat j < 4
        let at_#j = (row + #ju * APART) * STRIDE + 2u * column;
        if #ju < OWN_WEIGHTS {
            tile_weights[at_#j] = next_weights_#j.a;
            tile_weights[at_#j + 1u] = next_weights_#j.b;
        }
        if #ju < OWN_INPUTS && row + #ju * APART < TILE_TOKENS {
            tile_inputs[at_#j] = next_inputs_#j.a;
            tile_inputs[at_#j + 1u] = next_inputs_#j.b;
        }
        // end repeat
        workgroupBarrier();
        // What comes next is on its way during the products.
        bring(start + EIGHTS + column);
        for (var k = 0u; k < 2u * EIGHTS; k += 4u) {
            // repeat r < 2
            let w_#r = coopLoadT<coop_mat16x16<f16, A>>(&tile_weights[(first_row + min(#ru, ROW_PIECES - 1u) * 16u) * STRIDE + k], STRIDE);
            // end repeat
            // repeat t < 4
            if #tu < TOKEN_PIECES {
                let x = coopLoad<coop_mat16x16<f16, B>>(&tile_inputs[(first_token + #tu * 16u) * STRIDE + k], STRIDE);
                // repeat r < 2
                if #ru < ROW_PIECES {
                    sum_#r_#t = coopMultiplyAdd(w_#r, x, sum_#r_#t);
                }
                // end repeat
            }
            // end repeat
        }
        workgroupBarrier();
    }
    // repeat t < 4
    // repeat r < 2
    if #tu < TOKEN_PIECES && #ru < ROW_PIECES {
        coopStore(sum_#r_#t, &tile_results[place.subgroup * 256u], 16u);
        finish_piece(first, end, first_row + #ru * 16u, first_token + #tu * 16u, place);
    }
    // end repeat
    // end repeat
}
