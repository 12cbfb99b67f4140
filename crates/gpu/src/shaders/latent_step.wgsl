// Queries and latent of one token, as they leave their projections: every query head's plain part and its part with a position, which
// turns, go apart; the latent is normalised and goes into the cache, together with the turned part of the key. One query head per
// workgroup, and the latent in the last.
struct Params {
    heads: u32,
    nope: u32,
    pe: u32,
    rank: u32,
    // Words of a token in the cache, and its slot there.
    key_words: u32,
    slot: u32,
    // Where this embedding's angles begin.
    first_angle: u32,
    // Whether pairs are (2i, 2i + 1), not (i, i + pe / 2).
    interleaved: u32,
    eps: f32,
}
@group(1) @binding(0) var<uniform> params: Params;

// Per head [plain | with a position].
@group(0) @binding(0) var<storage, read> q: array<f32>;
// [latent | key with a position]
@group(0) @binding(1) var<storage, read> kv: array<f32>;
@group(0) @binding(2) var<storage, read> norm: array<f32>;
// Cosine and sine, factor included, for each pair.
@group(0) @binding(3) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read_write> q_plain: array<f32>;
@group(0) @binding(5) var<storage, read_write> q_turned: array<f32>;
@group(0) @binding(6) var<storage, read_write> keys: array<u32>;

var<private> inverse: f32;

fn stored_value(row: u32, c: u32) -> f32 {
    if c < params.rank {
        return kv[c] * inverse * norm[c];
    }
    if c < params.rank + params.pe {
        return turned(false, params.rank, c - params.rank);
    }
    return 0.0;
}

fn channel(is_query: bool, start: u32, c: u32) -> f32 {
    if is_query {
        return q[start + c];
    }
    return kv[start + c];
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let head = place.workgroup.x;
    if head < params.heads {
        let start = head * (params.nope + params.pe);
        for (var c = place.thread; c < params.nope; c += THREADS) {
            q_plain[head * params.nope + c] = q[start + c];
        }
        for (var c = place.thread; c < params.pe; c += THREADS) {
            q_turned[head * params.pe + c] = turned(true, start + params.nope, c);
        }
        return;
    }
    var squares = vec2(0.0);
    for (var c = place.thread; c < params.rank; c += THREADS) {
        squares += squares_of(kv[c]);
    }
    inverse = inverse_rms(squares, params.rank, params.eps, place);
    for (var i = place.thread; i < params.key_words; i += THREADS) {
        keys[params.slot * params.key_words + i] = stored_word(0u, i, params.rank + params.pe);
    }
}
