// Tokens that Gated DeltaNet takes at once, and what it knows about them beforehand: [T | P | kept | left], see
// gdn_chunks.wgsl.
const CHUNK: u32 = 16u;
const KEPT: u32 = 2u * CHUNK * CHUNK;
const LEFT: u32 = KEPT + CHUNK;
const CHUNK_WORDS: u32 = LEFT + CHUNK;

// Where that of a head lies for the first token of a chunk, the span being the `span_number`th from the first on. No
// two chunks share a place: n tokens are at most n / CHUNK + 1 chunks.
fn chunk_at(span: SpanOf, span_number: u32, first: u32, head: u32) -> u32 {
    let chunk = (span.row - params.first_row) / CHUNK + span_number + first / CHUNK;
    return (chunk * params.value_heads + head) * CHUNK_WORDS;
}

// Four values from column `c` on of a key (or, with `part` 0, a query) of one token of a span; zeros beyond the head and
// beyond the tokens.
fn key4(span: SpanOf, token: u32, part: u32, head: u32, c: u32) -> vec4<f32> {
    let key_total = params.key_heads * params.key_dim;
    let channels = 2u * key_total + params.value_heads * params.value_dim;
    let start = (span.row + token) * channels + part * key_total + head * params.key_dim + c;
    var four = vec4(0.0);
    if token < span.len {
        for (var k = 0u; k < 4u; k++) {
            if c + k < params.key_dim {
                four[k] = qkv[start + k];
            }
        }
    }
    return four;
}
