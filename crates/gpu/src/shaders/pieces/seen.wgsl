// What a causal mask, and a window where there is one, let tokens see, and how workgroups share the positions of a span.

// The first position that the token at `position` sees; the last is its own.
fn first_seen(position: u32) -> u32 {
    // A window of 0 is none.
    let window = select(params.window, position + 1u, params.window == 0u);
    return max(position + 1u, window) - window;
}

// Where the first part of a span's positions begins: at a block, where it has several tokens.
fn parts_begin(span: SpanOf) -> u32 {
    let first = first_seen(span.position);
    return select(first, first / BLOCK * BLOCK, span.len > 1u);
}

// Parts of its positions.
fn parts_of(span: SpanOf) -> u32 {
    return (span.position + span.len - parts_begin(span) + params.part_len - 1u) / params.part_len;
}
