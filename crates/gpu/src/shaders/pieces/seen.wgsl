// The first position a token sees, and one past the last.
fn seen(token: u32) -> vec2<u32> {
    let end = params.position + token + 1u;
    if params.mask == 0u {
        return vec2(0u, params.len);
    }
    if params.mask == 1u {
        return vec2(0u, end);
    }
    let window = params.mask - 1u;
    return vec2(max(end, window) - window, end);
}
