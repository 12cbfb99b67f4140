// 32 codes of 8 bits.
struct Codes {
    first: vec4<u32>,
    second: vec4<u32>,
}

// Codes are counted from the middle of their range, which is what they have to be.
const ABOVE: i32 = 0;

fn codes32(row: u32, group: u32) -> Codes {
    let at = row * (params.row_words / 4u) + 2u * group;
    return Codes(codes[at] ^ vec4(0x80808080u), codes[at + 1u] ^ vec4(0x80808080u));
}

fn pair_dot(words: vec2<u32>, x: vec4<u32>) -> vec2<i32> {
    return vec2(
        dot4I8Packed(words.x, x.x) + dot4I8Packed(words.y, x.y),
        dot4I8Packed(words.x, x.z) + dot4I8Packed(words.y, x.w),
    );
}

// The dot products of the first and of the second half of the codes with the high and with the low digits of two eights.
fn first_dot(c: Codes, a: vec4<u32>, b: vec4<u32>) -> vec2<i32> {
    return pair_dot(c.first.xy, a) + pair_dot(c.first.zw, b);
}

fn second_dot(c: Codes, a: vec4<u32>, b: vec4<u32>) -> vec2<i32> {
    return pair_dot(c.second.xy, a) + pair_dot(c.second.zw, b);
}
