// The key and the value that come in with a token: values that share a scale must all be there before they become codes.
const TOGETHER: bool = true;

// Eight codes, their scale, and its bits.
var<workgroup> new_key: array<vec4<u32>, WIDEST / FOUR>;
var<workgroup> new_value: array<vec4<u32>, WIDEST / FOUR>;

fn stored_value(row: u32, c: u32) -> f32 {
    return head_values[(row + 1u) * WIDEST + c];
}

// Channels `c` and the next.
fn keep_two(is_value: bool, c: u32, two: vec2<f32>) {
    let at = select(1u, 2u, is_value) * WIDEST + c;
    head_values[at] = two.x;
    head_values[at + 1u] = two.y;
}

fn kept_eight(row: u32, i: u32) -> vec4<u32> {
    let scale = group_scale(row, i / 4u);
    let codes = vec2(stored_codes(row, FOUR * i, scale), stored_codes(row, FOUR * i + 4u, scale));
    return vec4(codes, bitcast<u32>(unpack2x16float(scale).x), scale);
}

fn keep_rows(place: Place) {
    for (var i = place.thread; i < WIDEST / FOUR; i += THREADS) {
        new_key[i] = kept_eight(0u, i);
        new_value[i] = kept_eight(1u, i);
    }
    workgroupBarrier();
}

// What a row with `n` twos of codes takes in the cache.
fn row_fours(n: u32) -> u32 {
    return row_twos(n);
}

fn kept_key(i: u32, n: u32) -> Four {
    if i < n {
        return new_key[i].xy;
    }
    let first = 16u * (i - n);
    let at = min(vec4(first, first + 4u, first + 8u, first + 12u), vec4(n - 1u));
    return vec2(new_key[at.x].w | (new_key[at.y].w << 16u), new_key[at.z].w | (new_key[at.w].w << 16u));
}

fn kept_value(i: u32, n: u32) -> Four {
    if i < n {
        return new_value[i].xy;
    }
    let first = 16u * (i - n);
    let at = min(vec4(first, first + 4u, first + 8u, first + 12u), vec4(n - 1u));
    return vec2(new_value[at.x].w | (new_value[at.y].w << 16u), new_value[at.z].w | (new_value[at.w].w << 16u));
}
