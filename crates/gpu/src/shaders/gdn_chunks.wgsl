// What a chunk of tokens means to each other, whatever the state: a workgroup per chunk and head. With G(l,i) the decay from
// after token i to token l, A(l,i) = beta_l G(l,i) k_i.k_l for i < l:
//   T = (I + A)^-1 diag(beta), P(l,i) = G(l,i) k_i.q_l for i <= l, kept_l = decay from before the chunk to l, left_i = G(last,i).
// Decays are products, not exponentials of sums: a decay of exactly 0 needs no care. Tokens beyond the last have
// beta 0 and decay 1, and change nothing.
@group(0) @binding(2) var<storage, read> g: array<f32>;
@group(0) @binding(3) var<storage, read> beta: array<f32>;
@group(0) @binding(4) var<storage, read_write> chunks: array<f32>;

// Columns of keys and queries at a time, in fours; one more from row to row, so that rows begin in different banks.
const FOURS: u32 = 16u;
const STRIDE: u32 = FOURS + 1u;

var<workgroup> keys: array<vec4<f32>, CHUNK * STRIDE>;
var<workgroup> queries: array<vec4<f32>, CHUNK * STRIDE>;
var<workgroup> decays: array<f32, CHUNK>;
var<workgroup> rates: array<f32, CHUNK>;
var<workgroup> links: array<f32, CHUNK * CHUNK>;
var<workgroup> inverse: array<f32, CHUNK * CHUNK>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let first = place.workgroup.x * CHUNK;
    let head = place.workgroup.y;
    let span = span_of(params.first_span + place.workgroup.z);
    if first >= span.len || !is_taken(span) {
        return;
    }
    let key_head = head / (params.value_heads / params.key_heads);
    let l = place.thread / CHUNK;
    let i = place.thread % CHUNK;

    if place.thread < CHUNK {
        let token = first + place.thread;
        let gate = (span.row + token) * params.gate_stride + head;
        let real = token < span.len;
        decays[place.thread] = 1.0;
        rates[place.thread] = 0.0;
        if real {
            decays[place.thread] = g[gate];
            rates[place.thread] = beta[gate];
        }
    }
    var kk = 0.0;
    var qk = 0.0;
    for (var start = 0u; start < params.key_dim; start += 4u * FOURS) {
        let c = start + 4u * i;
        keys[l * STRIDE + i] = key4(span, first + l, 1u, key_head, c);
        queries[l * STRIDE + i] = key4(span, first + l, 0u, key_head, c);
        workgroupBarrier();
        for (var j = 0u; j < FOURS; j++) {
            let k = keys[i * STRIDE + j];
            kk += dot(keys[l * STRIDE + j], k);
            qk += dot(queries[l * STRIDE + j], k);
        }
        workgroupBarrier();
    }

    // G(l,i); 1 for i = l.
    var from_i = 1.0;
    for (var j = i + 1u; j <= l; j++) {
        from_i *= decays[j];
    }
    links[place.thread] = select(0.0, rates[l] * from_i * kk, i < l);
    let out = chunk_at(span, place.workgroup.z, first, head);
    chunks[out + CHUNK * CHUNK + place.thread] = select(0.0, from_i * qk, i <= l);
    if i == 0u {
        chunks[out + KEPT + l] = decays[0] * from_i;
    }
    if l == CHUNK - 1u {
        chunks[out + LEFT + i] = from_i;
    }
    workgroupBarrier();
    // Columns of the inverse are independent of each other.
    if place.thread < CHUNK {
        let column = place.thread;
        for (var row = 0u; row < CHUNK; row++) {
            var sum = select(0.0, 1.0, row == column);
            for (var j = column; j < row; j++) {
                sum -= links[row * CHUNK + j] * inverse[j * CHUNK + column];
            }
            inverse[row * CHUNK + column] = sum;
        }
    }
    workgroupBarrier();
    chunks[out + place.thread] = inverse[place.thread] * rates[i];
}
