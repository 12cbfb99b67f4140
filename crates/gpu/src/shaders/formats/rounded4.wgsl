// 32 codes of 4 bits.
struct Codes {
    words: vec4<u32>,
}

// What a dot product of codes counted from 0 is too large by, for each unit of the inputs' sum.
const ABOVE: i32 = 8;

fn codes32(row: u32, group: u32) -> Codes {
    return Codes(codes[row * (params.row_words / 4u) + group]);
}

fn word_dot(word: u32, x: vec4<u32>) -> vec2<i32> {
    let even = word & 0x0f0f0f0fu;
    let odd = (word >> 4u) & 0x0f0f0f0fu;
    return vec2(
        dot4I8Packed(even, x.x) + dot4I8Packed(odd, x.y),
        dot4I8Packed(even, x.z) + dot4I8Packed(odd, x.w),
    );
}

// The dot products of the first and of the second half of the codes with the high and with the low digits of two eights.
fn first_dot(c: Codes, a: vec4<u32>, b: vec4<u32>) -> vec2<i32> {
    return word_dot(c.words.x, a) + word_dot(c.words.y, b);
}

fn second_dot(c: Codes, a: vec4<u32>, b: vec4<u32>) -> vec2<i32> {
    return word_dot(c.words.z, a) + word_dot(c.words.w, b);
}
