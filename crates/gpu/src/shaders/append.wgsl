// Writes rows `first_row..` of [a | b] behind what a cache holds: slot (position + t) % slots. A thread writes one word.
struct Params {
    tokens: u32,
    first_row: u32,
    heads: u32,
    // Channels of a head in a and in b, and words of a head in the cache.
    width_a: u32,
    width_b: u32,
    words: u32,
    position: u32,
    slots: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;

fn stored_value(row: u32, channel: u32) -> f32 {
    if channel < params.width_a {
        return a[row * params.width_a + channel];
    }
    if channel < params.width_a + params.width_b {
        return b[row * params.width_b + channel - params.width_a];
    }
    return 0.0;
}

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let i = folded(place) * THREADS + place.thread;
    let token_words = params.heads * params.words;
    let token = i / token_words;
    if token >= params.tokens {
        return;
    }
    let head = i % token_words / params.words;
    let row = (params.first_row + token) * params.heads + head;
    let slot = (params.position + token) % params.slots;
    let width = params.width_a + params.width_b;
    cache[slot * token_words + i % token_words] = stored_word(row, i % params.words, width);
}
