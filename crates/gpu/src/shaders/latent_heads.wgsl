// The heads of one token and their attention over latents, as they leave their projections: a query head per workgroup, whose plain part goes
// through its matrix to a query of latents and whose part with a position turns; the latent that comes in is normalised, its key's part with a position turns,
// and both go into the cache, from the first head. Positions are shared by splits, whose results heads_merged puts together.
struct Params {
    row_words: u32,
    row_scales: u32,
    cols: u32,
    eights: u32,
    nope: u32,
    pe: u32,
    rank: u32,
    key_heads: u32,
    // Fours of words of a token in the cache, and of its latent.
    key_fours: u32,
    value_stride: u32,
    value_fours: u32,
    slots: u32,
    // The token's own.
    position: u32,
    // Where this embedding's angles begin.
    first_angle: u32,
    // Whether pairs are (2i, 2i + 1), not (i, i + pe / 2).
    interleaved: u32,
    eps: f32,
    scale: f32,
    // 0 for none.
    soft_cap: f32,
    heads: u32,
    // Positions of a split.
    split_len: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

// Per head [plain | with a position].
@group(0) @binding(2) var<storage, read> q: array<f32>;
// [latent | key with a position]
@group(0) @binding(3) var<storage, read> kv: array<f32>;
@group(0) @binding(4) var<storage, read> w: array<f32>;
// Cosine and sine, factor included, for each pair.
@group(0) @binding(5) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(6) var<storage, read_write> keys: array<vec4<u32>>;
// [split][head][max, sum, values]
@group(0) @binding(7) var<storage, read_write> partial: array<f32>;

// Words of the new key that a thread has.
const WORDS: u32 = (4u * LANES * KEY_STEPS + THREADS - 1u) / THREADS;
// Most eights of the plain part of a query.
const MOST_EIGHTS: u32 = 32u;

var<workgroup> plain: array<vec4<f32>, 2u * MOST_EIGHTS>;
var<workgroup> new_key: array<vec4<u32>, WORDS * THREADS / 4u>;

fn load_value(at: u32) -> vec4<u32> {
    return keys[at];
}

// What is behind the last position is never seen, but must be numbers.
fn key_at(loaded: vec4<u32>, four: u32, position: u32) -> vec4<u32> {
    return select(loaded, new_key[four], position >= params.position);
}

fn value_at(loaded: vec4<u32>, four: u32, position: u32) -> vec4<u32> {
    return key_at(loaded, four, position);
}

// The first or the second quads.
fn write(k: u32, at: u32, place: Place) {
    for (var i = place.thread; i < RESULTS; i += THREADS) {
        let channel = channel_of(i, k);
        if channel < params.rank {
            partial[at + 2u + channel] = published_result(0u, i);
        }
    }
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let head = place.workgroup.x;
    let split = place.workgroup.y;
    let start = head * (params.nope + params.pe);
    let begin = split * params.split_len;
    let end = min(begin + params.split_len, params.position + 1u);
    // Everything is asked for before anything is waited for.
    var raw: array<vec2<f32>, WORDS>;
    var norms: array<vec2<f32>, WORDS>;
    for (var i = 0u; i < WORDS; i++) {
        let c = min((i * THREADS + place.thread) * WORD_VALUES, params.rank - WORD_VALUES);
        raw[i] = vec2(kv[c], kv[c + WORD_VALUES - 1u]);
        norms[i] = vec2(w[c], w[c + WORD_VALUES - 1u]);
    }
    load_key(min(begin + team_of(place), end - 1u), 0u, place);
    if place.thread < 2u * params.eights {
        let at = start + 4u * place.thread;
        plain[place.thread] = vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]);
    }
    let from_end = THREADS - 1u - place.thread;
    if from_end < params.pe {
        let c = params.rank + from_end;
        queries[c / 4u][c % 4u] = params.scale * turned(true, start + params.nope, from_end);
    }
    var squares = vec2(0.0);
    for (var i = 0u; i < WORDS; i++) {
        let real = (i * THREADS + place.thread) * WORD_VALUES < params.rank;
        squares += select(vec2(0.0), squares_of(raw[i].x), real);
        squares += select(vec2(0.0), squares_of(raw[i].y), real && WORD_VALUES == 2u);
    }
    publish_sum(squares, place);
    workgroupBarrier();
    for (var r = place.thread; r < params.rank; r += THREADS) {
        var sum = 0.0;
        let row = head * params.rank + r;
        for (var i = 0u; i < params.eights; i++) {
            let input = Eight(plain[2u * i], plain[2u * i + 1u]);
            let s = scale(row, i);
            sum += s.x * dot8(codes8(row, i), input) + s.y * sum8(input);
        }
        queries[r / 4u][r % 4u] = params.scale * sum;
    }
    let inverse = inverse_of(published_sum(place), params.rank, params.eps);
    for (var i = 0u; i < WORDS; i++) {
        let word = i * THREADS + place.thread;
        let c = word * WORD_VALUES;
        var two = raw[i] * inverse * norms[i];
        if c >= params.rank {
            two = vec2(0.0);
            if c < params.rank + params.pe {
                let own = c - params.rank;
                two = vec2(turned(false, params.rank, own), turned(false, params.rank, own + WORD_VALUES - 1u));
            }
        }
        new_key[word / 4u][word % 4u] = packed(two);
    }
    workgroupBarrier();
    attend(begin, end, 0u, place);
    let at = (split * params.heads + head) * (params.rank + 2u);
    workgroupBarrier();
    publish_quad(0u, first_quads[0], place);
    workgroupBarrier();
    write(0u, at, place);
    if QUADS == 2u {
        workgroupBarrier();
        publish_quad(0u, second_quads[0], place);
        workgroupBarrier();
        write(1u, at, place);
    }
    if place.thread == 0u {
        partial[at] = largest_of(0u);
        partial[at + 1u] = sum_of(0u);
    }
    if head == 0u && end > params.position && place.thread < params.key_fours {
        keys[params.position % params.slots * params.key_fours + place.thread] = new_key[place.thread];
    }
}
