// The recurrence, a chunk of tokens at a time; T, P, kept and left are from gdn_chunks.wgsl:
//   U = T (v - kept S k), y = kept S q + P U, S = kept_last S + sum_i left_i U_i k_i^T.
// A workgroup has ROWS rows of one head's S in shared memory and goes through all chunks. While it works with the chunk's queries its
// keys are on their way, and while it works with the keys the next chunk's queries.
@group(0) @binding(2) var<storage, read> chunks: array<f32>;
@group(0) @binding(3) var<storage, read_write> state: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

const ROWS: u32 = THREADS / CHUNK;
// Columns in fours, and one more from row to row, so that rows begin in different banks.
const FOURS: u32 = 32u;
const STRIDE: u32 = FOURS + 1u;
// Fours of keys that a thread fetches.
const SHARE: u32 = CHUNK * FOURS / THREADS;

var<workgroup> rows: array<vec4<f32>, ROWS * STRIDE>;
// The chunk's queries, then its keys: [token][column].
var<workgroup> tile: array<vec4<f32>, CHUNK * STRIDE>;
var<workgroup> links: array<f32, CHUNK_WORDS>;
// [token][row]
var<workgroup> wanted: array<f32, CHUNK * ROWS>;
var<workgroup> written: array<f32, CHUNK * ROWS>;

var<private> fetched: array<vec4<f32>, SHARE>;

fn fetch(span: SpanOf, first: u32, part: u32, head: u32, thread: u32) {
    for (var j = 0u; j < SHARE; j++) {
        let n = thread + j * THREADS;
        fetched[j] = key4(span, first + n / FOURS, part, head, n % FOURS * 4u);
    }
}

fn put(thread: u32) {
    for (var j = 0u; j < SHARE; j++) {
        let n = thread + j * THREADS;
        tile[n / FOURS * STRIDE + n % FOURS] = fetched[j];
    }
}

// A row of S times what the tile has for a token.
fn product(row: u32, token: u32) -> f32 {
    var sum = vec4(0.0);
    for (var c = 0u; c < (params.key_dim + 3u) / 4u; c++) {
        sum += rows[row * STRIDE + c] * tile[token * STRIDE + c];
    }
    return sum.x + sum.y + sum.z + sum.w;
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let span = span_of(params.first_span + place.workgroup.z);
    if !is_taken(span) {
        return;
    }
    let thread = place.thread;
    let head = place.workgroup.y;
    let key_head = head / (params.value_heads / params.key_heads);
    let key_total = params.key_heads * params.key_dim;
    let channels = 2u * key_total + params.value_heads * params.value_dim;
    let first_row = place.workgroup.x * ROWS;
    let matrix = matrix_row(span, head, first_row);

    // In products a thread has one row and token, where S is read or changed one row and some columns.
    let row = thread % ROWS;
    let token = thread / ROWS;
    let real_row = first_row + row < params.value_dim;
    let state_row = thread / CHUNK;
    let state_real = first_row + state_row < params.value_dim;

    for (var c = thread % CHUNK; c < FOURS; c += CHUNK) {
        var four = vec4(0.0);
        for (var k = 0u; k < 4u; k++) {
            if state_real && 4u * c + k < params.key_dim {
                four[k] = state[matrix + state_row * params.key_dim + 4u * c + k];
            }
        }
        rows[state_row * STRIDE + c] = four;
    }
    fetch(span, 0u, 0u, key_head, thread);
    for (var first = 0u; first < span.len; first += CHUNK) {
        put(thread);
        let out = chunk_at(span, place.workgroup.z, first, head);
        for (var n = thread; n < CHUNK_WORDS; n += THREADS) {
            links[n] = chunks[out + n];
        }
        workgroupBarrier();
        fetch(span, first, 1u, key_head, thread);
        let real = real_row && first + token < span.len;
        var v = 0.0;
        if real {
            v = qkv[(span.row + first + token) * channels + 2u * key_total + head * params.value_dim + first_row + row];
        }
        let kept = links[KEPT + token];
        var result = kept * product(row, token);
        workgroupBarrier();
        put(thread);
        workgroupBarrier();
        fetch(span, first + CHUNK, 0u, key_head, thread);
        wanted[token * ROWS + row] = v - kept * product(row, token);
        workgroupBarrier();
        var u = 0.0;
        for (var i = 0u; i <= token; i++) {
            u += links[token * CHUNK + i] * wanted[i * ROWS + row];
        }
        written[token * ROWS + row] = u;
        workgroupBarrier();
        for (var i = 0u; i <= token; i++) {
            result += links[CHUNK * CHUNK + token * CHUNK + i] * written[i * ROWS + row];
        }
        if real {
            y[((span.row + first + token) * params.value_heads + head) * params.value_dim + first_row + row] = result;
        }
        let kept_last = links[KEPT + CHUNK - 1u];
        for (var c = thread % CHUNK; c < FOURS; c += CHUNK) {
            var four = kept_last * rows[state_row * STRIDE + c];
            for (var i = 0u; i < CHUNK; i++) {
                four += links[LEFT + i] * written[i * ROWS + state_row] * tile[i * STRIDE + c];
            }
            rows[state_row * STRIDE + c] = four;
        }
        // Before the next chunk overwrites what this one reads.
        workgroupBarrier();
    }
    for (var c = thread % CHUNK; c < FOURS; c += CHUNK) {
        let four = rows[state_row * STRIDE + c];
        for (var k = 0u; k < 4u; k++) {
            if state_real && 4u * c + k < params.key_dim {
                state[matrix + state_row * params.key_dim + 4u * c + k] = four[k];
            }
        }
    }
}
