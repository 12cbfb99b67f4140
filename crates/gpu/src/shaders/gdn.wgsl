// For each token: S *= g; u = (v - S k) beta; S += u k^T; y = S q. A workgroup has ROWS rows of one head's S in registers, LANES
// threads a row, each with KEYS columns.
//
// Both products with S are taken before it changes, so that a token needs one sum over the lanes:
// S_new q = g S q + u (k . q). With RAW, q and k come without their norm and the gates as they leave their projections:
// the norms' squares are summed along with the rest.
@group(0) @binding(2) var<storage, read_write> state: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const LANES: u32 = THREADS / ROWS;

// S k, S q, k q, and k k, q q; twice, so that the next token's sums do not wait for all to have read these.
var<workgroup> products: array<vec3<f32>, 2u * THREADS>;
var<workgroup> squares: array<vec2<f32>, 2u * THREADS>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let span = span_of(params.first_span + place.workgroup.z);
    if !is_taken(span) {
        return;
    }
    let lane = place.thread % LANES;
    let local_row = place.thread / LANES;
    let head = place.workgroup.y;
    let key_head = head / (params.value_heads / params.key_heads);
    let row = place.workgroup.x * ROWS + local_row;
    // Rows beyond the last compute along, but read and write nothing.
    let real = row < params.value_dim;
    let key_total = params.key_heads * params.key_dim;
    let channels = 2u * key_total + params.value_heads * params.value_dim;
    let matrix = matrix_row(span, head, row);

    var s: array<f32, KEYS>;
    for (var j = 0u; j < KEYS; j++) {
        let c = lane + j * LANES;
        s[j] = 0.0;
        if real && c < params.key_dim {
            s[j] = state[matrix + c];
        }
    }
    for (var t = 0u; t < span.len; t++) {
        let token = span.row + t;
        let start = token * channels;
        var k: array<f32, KEYS>;
        var product = vec3(0.0);
        var square = vec2(0.0);
        for (var j = 0u; j < KEYS; j++) {
            let c = lane + j * LANES;
            k[j] = 0.0;
            if c < params.key_dim {
                let q = qkv[start + key_head * params.key_dim + c];
                k[j] = qkv[start + key_total + key_head * params.key_dim + c];
                product += vec3(s[j] * k[j], s[j] * q, k[j] * q);
                square += vec2(k[j] * k[j], q * q);
            }
        }
        let half = (t & 1u) * THREADS;
        products[half + place.thread] = product;
        if RAW {
            squares[half + place.thread] = square;
        }
        workgroupBarrier();
        product = vec3(0.0);
        square = vec2(0.0);
        for (var i = 0u; i < LANES; i++) {
            product += products[half + local_row * LANES + i];
            if RAW {
                square += squares[half + local_row * LANES + i];
            }
        }
        let gate = token * params.gate_stride + head;
        let keep = keep_of(gate, head);
        let rate = rate_of(gate);
        var k_factor = 1.0;
        if RAW {
            k_factor = 1.0 / sqrt(square.x + 1e-6);
            let q_factor = 1.0 / sqrt(square.y + 1e-6) / sqrt(f32(params.key_dim));
            product *= vec3(k_factor, q_factor, k_factor * q_factor);
        }
        var v = 0.0;
        if real {
            v = qkv[start + 2u * key_total + head * params.value_dim + row];
        }
        let u = (v - keep * product.x) * rate;
        for (var j = 0u; j < KEYS; j++) {
            s[j] = keep * s[j] + u * k_factor * k[j];
        }
        if real && lane == 0u {
            y[(token * params.value_heads + head) * params.value_dim + row] = keep * product.y + u * product.z;
        }
    }
    for (var j = 0u; j < KEYS; j++) {
        let c = lane + j * LANES;
        if real && c < params.key_dim {
            state[matrix + c] = s[j];
        }
    }
}
