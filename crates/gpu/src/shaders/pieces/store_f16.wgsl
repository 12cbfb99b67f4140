// A cache of f16: a word is two values.
const WORD_VALUES: u32 = 2u;

// To nearest, ties to even, which `pack2x16float` need not do.
fn half_bits(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if size > 0x7f800000u {
        return sign | 0x7e00u;
    }
    if size >= 0x477ff000u {
        return sign | 0x7c00u;
    }
    if size < 0x38800000u {
        // Below 2^-14: a multiple of 2^-24, found by adding a number whose last bit is worth as much.
        return sign | (bitcast<u32>(bitcast<f32>(size) + 0.5) - 0x3f000000u);
    }
    let odd = (size >> 13u) & 1u;
    return sign | ((size - 0x38000000u + 0xfffu + odd) >> 13u);
}

fn packed(values: vec2<f32>) -> u32 {
    return half_bits(values.x) | (half_bits(values.y) << 16u);
}

fn unpacked(word: u32) -> vec2<f32> {
    return unpack2x16float(word);
}
