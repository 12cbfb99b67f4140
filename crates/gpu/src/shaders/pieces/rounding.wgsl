// Rounding to 16 bits with one scale for each group: two digits of 8 bits.
// The largest number whose high digit is one of 8 bits.
const LARGEST: f32 = 32512.0;
// Added to a small number, this leaves its nearest whole number in the lowest bits.
const WHOLE: f32 = 12582912.0;

// Eight inputs rounded, the scale of their group, and its sum.
struct RoundedEight {
    digits: vec4<u32>,
    scale: f32,
    sum: i32,
}

// The lowest bytes of four words as one.
fn low_bytes(v: vec4<u32>) -> u32 {
    return (v.x & 255u) | ((v.y & 255u) << 8u) | ((v.z & 255u) << 16u) | (v.w << 24u);
}

// Eight inputs in the order of the codes that they are multiplied with: of 8 bits as they come; of 4 bits those of the low halves of a word's
// bytes, then the others.
fn arranged(bits: u32, a: vec4<u32>, b: vec4<u32>) -> vec2<u32> {
    if bits == 4u {
        return vec2(low_bytes(vec4(a.xz, b.xz)), low_bytes(vec4(a.yw, b.yw)));
    }
    return vec2(low_bytes(a), low_bytes(b));
}

// The largest size of eight values, as bits, in whose order what is not a number comes after all numbers.
fn size_of(v: Eight) -> u32 {
    let four = max(bitcast<vec4<u32>>(abs(v.a)), bitcast<vec4<u32>>(abs(v.b)));
    return max(max(four.x, four.y), max(four.z, four.w));
}

// Rounds the eights of four neighbouring threads, which are a group, for weights of so many bits. All threads must call it.
fn rounded_eight(v: Eight, bits: u32, place: Place) -> RoundedEight {
    let size = bitcast<f32>(quad_max(size_of(v), place));
    let factor = select(0.0, LARGEST / size, size > 1e-30);
    let a = bitcast<vec4<u32>>(v.a * factor + WHOLE);
    let b = bitcast<vec4<u32>>(v.b * factor + WHOLE);
    // A low digit of 128 and more stands for one below zero, and the high one is one more.
    let high = arranged(bits, (a + vec4(128u)) >> vec4(8u), (b + vec4(128u)) >> vec4(8u));
    let low = arranged(bits, a, b);
    let highs = dot4I8Packed(high.x, 0x01010101u) + dot4I8Packed(high.y, 0x01010101u);
    let lows = dot4I8Packed(low.x, 0x01010101u) + dot4I8Packed(low.y, 0x01010101u);
    return RoundedEight(vec4(high, low), size * (1.0 / LARGEST), quad_sum(256 * highs + lows, place));
}
