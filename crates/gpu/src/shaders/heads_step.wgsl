// Queries, keys and values of one token, as they leave their projection: queries and keys are normalised per head and turn by the
// angles of the token's position, keys and values go into the caches. One head per workgroup: those of queries, of keys, of values.
struct Params {
    // Heads of queries, and of keys.
    heads: u32,
    key_heads: u32,
    // Channels of a query or key, from one query to the next, and of a value.
    width: u32,
    stride: u32,
    value_width: u32,
    // Where keys and values are behind the queries; no keys for 0 heads of them.
    k_at: u32,
    v_at: u32,
    // Words of a head in the caches, and the token's slot there.
    key_words: u32,
    value_words: u32,
    slot: u32,
    pairs: u32,
    // Where this embedding's angles begin.
    first_angle: u32,
    // Whether pairs are (2i, 2i + 1), not (i, i + pairs).
    interleaved: u32,
    norm_values: u32,
    eps: f32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> q_norm: array<f32>;
@group(0) @binding(2) var<storage, read> k_norm: array<f32>;
// Cosine and sine, factor included, for each pair.
@group(0) @binding(3) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read_write> q: array<f32>;
@group(0) @binding(5) var<storage, read_write> keys: array<u32>;
@group(0) @binding(6) var<storage, read_write> values: array<u32>;

// Widest head.
const WIDEST: u32 = 1024u;

var<workgroup> head_values: array<f32, WIDEST>;

fn turned(c: u32) -> f32 {
    if c >= 2u * params.pairs {
        return head_values[c];
    }
    var pair = c % params.pairs;
    var second = c >= params.pairs;
    var distance = params.pairs;
    if params.interleaved != 0u {
        pair = c / 2u;
        second = (c & 1u) == 1u;
        distance = 1u;
    }
    let turn = angles[params.first_angle + pair];
    if second {
        return head_values[c - distance] * turn.y + head_values[c] * turn.x;
    }
    return head_values[c] * turn.x - head_values[c + distance] * turn.y;
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let n = place.workgroup.x;
    let is_query = n < params.heads;
    let is_value = n >= params.heads + params.key_heads;
    var head = n;
    var begin = n * params.stride;
    var width = params.width;
    if is_value {
        head = n - params.heads - params.key_heads;
        width = params.value_width;
        begin = params.v_at + head * width;
    } else if !is_query {
        head = n - params.heads;
        begin = params.k_at + head * width;
    }
    var squares = vec2(0.0);
    for (var c = place.thread; c < width; c += THREADS) {
        squares += squares_of(x[begin + c]);
    }
    let inverse = inverse_rms(squares, width, params.eps, place);
    for (var c = place.thread; c < WIDEST; c += THREADS) {
        var value = 0.0;
        if c < width {
            value = x[begin + c];
            if is_query {
                value *= inverse * q_norm[c];
            } else if !is_value {
                value *= inverse * k_norm[c];
            } else if params.norm_values != 0u {
                value *= inverse;
            }
        }
        head_values[c] = value;
    }
    workgroupBarrier();
    if is_query {
        for (var c = place.thread; c < width; c += THREADS) {
            q[head * width + c] = turned(c);
        }
    } else if is_value {
        for (var i = place.thread; i < params.value_words; i += THREADS) {
            let c = i * WORD_VALUES;
            let at = (params.slot * params.key_heads + head) * params.value_words + i;
            values[at] = packed(vec2(head_values[c], head_values[c + 1u]));
        }
    } else {
        for (var i = place.thread; i < params.key_words; i += THREADS) {
            let c = i * WORD_VALUES;
            let at = (params.slot * params.key_heads + head) * params.key_words + i;
            keys[at] = packed(vec2(turned(c), turned(c + 1u)));
        }
    }
}
