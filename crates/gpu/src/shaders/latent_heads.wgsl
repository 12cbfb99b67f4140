// The heads of spans of one token and their attention over latents, as they leave their projections: a query head per workgroup, whose plain part is rounded
// and goes through its matrix to a query of latents and whose part with a position turns; the latent that comes in is normalised, its key's part with a position
// turns, and both go into the slab, from the first head. Workgroups share the positions of a span in parts, whose results heads_merged puts together.
struct Params {
    row_words: u32,
    row_scales: u32,
    cols: u32,
    eights: u32,
    nope: u32,
    pe: u32,
    rank: u32,
    key_heads: u32,
    // Fours of words of a token in the slab, and of its latent.
    key_fours: u32,
    value_stride: u32,
    value_fours: u32,
    // Spans from this one on, of which longer ones are not taken.
    first_span: u32,
    spans: u32,
    // Where the tables of all spans begin, and words from one to the next.
    table: u32,
    table_stride: u32,
    // 0: there is none.
    window: u32,
    // Where this embedding's angles begin.
    first_angle: u32,
    // Whether pairs are (2i, 2i + 1), not (i, i + pe / 2).
    interleaved: u32,
    eps: f32,
    scale: f32,
    // 0 for none.
    soft_cap: f32,
    heads: u32,
    // Positions of a part.
    part_len: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

// Per head [plain | with a position].
@group(0) @binding(2) var<storage, read> q: array<f32>;
// [latent | key with a position]
@group(0) @binding(3) var<storage, read> kv: array<f32>;
@group(0) @binding(4) var<storage, read> norm: array<f32>;
@group(0) @binding(5) var<storage, read> steps: array<u32>;
@group(0) @binding(6) var<storage, read_write> keys: array<Four>;
// [part][span][head][max, sum, values]
@group(0) @binding(7) var<storage, read_write> partial: array<f32>;

// Words of a latent that a thread has.
const WORDS: u32 = (4u * LANES * KEY_STEPS + THREADS - 1u) / THREADS;
// Most groups of the plain part of a query, and rows of its matrix that a thread has.
const PLAIN_GROUPS: u32 = 4u;
const MATRIX_ROWS: u32 = 512u / THREADS;

var<workgroup> plain_digits: array<vec4<u32>, 4u * PLAIN_GROUPS>;
var<workgroup> plain_scales: array<f32, PLAIN_GROUPS>;
var<workgroup> plain_sums: array<i32, PLAIN_GROUPS>;
var<workgroup> new_key: array<vec4<u32>, WORDS * THREADS / 4u>;

// The token's own position.
var<private> own_position: u32;

fn key_words(at: u32) -> Four {
    return keys[at];
}

fn value_words(at: u32) -> Four {
    return keys[at];
}

// What is behind the last position is never seen, but must be numbers.
fn key_at(loaded: vec4<u32>, four: u32, position: u32) -> vec4<u32> {
    return select(loaded, new_key[four], position >= own_position);
}

fn value_at(loaded: vec4<u32>, four: u32, position: u32) -> vec4<u32> {
    return key_at(loaded, four, position);
}

// Eight of the plain part of a query, zeros behind it.
fn plain8(begin: u32, eight: u32) -> Eight {
    let first = ready(begin + 8u * min(eight, params.eights - 1u));
    let a = vec4(q[first], q[first + 1u], q[first + 2u], q[first + 3u]);
    let b = vec4(q[first + 4u], q[first + 5u], q[first + 6u], q[first + 7u]);
    let real = eight < params.eights;
    return Eight(select(vec4(0.0), a, real), select(vec4(0.0), b, real));
}

// The first or the second quads.
fn write(k: u32, begin: u32, place: Place) {
    for (var i = place.thread; i < RESULTS; i += THREADS) {
        let channel = channel_of(i, k);
        if channel < params.rank {
            partial[begin + 2u + channel] = published_result(0u, i);
        }
    }
}

fn channel(is_query: bool, start: u32, c: u32) -> f32 {
    if is_query {
        return q[ready(start + c)];
    }
    return kv[ready(start + c)];
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let head = place.workgroup.x;
    let number = params.first_span + place.workgroup.z;
    let span = span_of(number);
    blocks = blocks_of(params.table + number * params.table_stride);
    own_position = span.position;
    let begin = parts_begin(span) + place.workgroup.y * params.part_len;
    let end = min(begin + params.part_len, span.position + 1u);
    if span.len != 1u || begin >= end {
        announce(place);
        return;
    }
    let start = (span.row * params.heads + head) * (params.nope + params.pe);
    let latent = span.row * (params.rank + params.pe);
    let index = index_of(place);
    // What does not come from the kernel before is asked for first.
    var held: array<Codes, MATRIX_ROWS * PLAIN_GROUPS>;
    var pairs: array<vec2<f32>, MATRIX_ROWS * PLAIN_GROUPS>;
    for (var n = 0u; n < MATRIX_ROWS; n++) {
        let row = head * params.rank + min(n * THREADS + index, params.rank - 1u);
        for (var g = 0u; g < PLAIN_GROUPS; g++) {
            let group = min(g, params.eights / 4u - 1u);
            held[n * PLAIN_GROUPS + g] = codes32(row, group);
            pairs[n * PLAIN_GROUPS + g] = scale(row, 4u * group);
        }
    }
    var raw: array<vec2<f32>, WORDS>;
    var norms: array<vec2<f32>, WORDS>;
    for (var i = 0u; i < WORDS; i++) {
        let c = min((i * THREADS + index) * WORD_VALUES, params.rank - WORD_VALUES);
        norms[i] = vec2(norm[c], norm[c + WORD_VALUES - 1u]);
    }
    load_key(min(begin + team_of(place), end - 1u), 0u, place);
    wait_for_inputs(place);
    let plain = plain8(start, index);
    for (var i = 0u; i < WORDS; i++) {
        let c = min((i * THREADS + index) * WORD_VALUES, params.rank - WORD_VALUES);
        raw[i] = vec2(kv[ready(latent + c)], kv[ready(latent + c + WORD_VALUES - 1u)]);
    }
    let own = min(index, params.pe / WORD_VALUES - 1u) * WORD_VALUES;
    let key = latent + params.rank;
    let turned_key = vec2(turned(false, key, own, span.row), turned(false, key, own + WORD_VALUES - 1u, span.row));
    let turned_query = turned(true, start + params.nope, min(index, params.pe - 1u), span.row);

    let rounded = rounded_eight(plain, BITS, place);
    if index < 4u * PLAIN_GROUPS {
        plain_digits[index] = rounded.digits;
        if index % 4u == 0u {
            plain_scales[index / 4u] = rounded.scale;
            plain_sums[index / 4u] = rounded.sum;
        }
    }
    if index < params.pe {
        let c = params.rank + index;
        queries[c / 4u][c % 4u] = params.scale * turned_query;
    }
    var squares = vec2(0.0);
    for (var i = 0u; i < WORDS; i++) {
        let real = (i * THREADS + index) * WORD_VALUES < params.rank;
        squares += select(vec2(0.0), squares_of(raw[i].x), real);
        squares += select(vec2(0.0), squares_of(raw[i].y), real && WORD_VALUES == 2u);
    }
    publish_sum(squares, place);
    workgroupBarrier();
    for (var n = 0u; n < MATRIX_ROWS; n++) {
        var sum = 0.0;
        for (var g = 0u; g < PLAIN_GROUPS; g++) {
            let own = n * PLAIN_GROUPS + g;
            let dots = first_dot(held[own], plain_digits[4u * g], plain_digits[4u * g + 1u])
                + second_dot(held[own], plain_digits[4u * g + 2u], plain_digits[4u * g + 3u]);
            sum += plain_scales[g] * scaled(dots, pairs[own], plain_sums[g]);
        }
        let r = n * THREADS + index;
        if r < params.rank {
            queries[r / 4u][r % 4u] = params.scale * sum;
        }
    }
    let inverse = inverse_of(published_sum(place), params.rank, params.eps);
    for (var i = 0u; i < WORDS; i++) {
        let word = i * THREADS + index;
        if word * WORD_VALUES < params.rank {
            new_key[word / 4u][word % 4u] = packed(raw[i] * inverse * norms[i]);
        }
    }
    if index < params.pe / WORD_VALUES {
        let word = params.rank / WORD_VALUES + index;
        new_key[word / 4u][word % 4u] = packed(turned_key);
    }
    workgroupBarrier();
    attend(begin, end, 0u, place);
    let part = place.workgroup.y * params.spans + place.workgroup.z;
    let results = (part * params.heads + head) * (params.rank + 2u);
    workgroupBarrier();
    publish_quad(0u, first_quads[0], place);
    workgroupBarrier();
    write(0u, results, place);
    if QUADS == 2u {
        workgroupBarrier();
        publish_quad(0u, second_quads[0], place);
        workgroupBarrier();
        write(1u, results, place);
    }
    if place.thread == 0u {
        partial[results] = largest_of(0u);
        partial[results + 1u] = sum_of(0u);
    }
    if head == 0u && end > span.position && place.thread < params.key_fours {
        keys[head_row(span.position, 0u) * params.key_fours + place.thread] = new_key[place.thread];
    }
    announce(place);
}
