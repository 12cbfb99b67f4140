// The first position a token sees, and one past the last.
fn seen(token: u32) -> vec2<u32> {
    let end = params.position + token + 1u;
    // A window of 0 is none.
    let window = select(params.window, end, params.window == 0u);
    return vec2(max(end, window) - window, end);
}
