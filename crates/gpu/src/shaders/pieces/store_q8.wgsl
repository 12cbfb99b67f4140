// A cache of codes: a row is a byte for each value, filled up to whole fours of words, then a half for each 32 of them, the scale.
// To nearest, ties to even; of numbers that are not negative and less than 2^16.
fn half_bits(value: f32) -> u32 {
    let size = bitcast<u32>(value);
    if size < 0x38800000u {
        // Below 2^-14: a multiple of 2^-24, found by adding a number whose last bit is worth as much.
        return bitcast<u32>(value + 0.5) - 0x3f000000u;
    }
    return (size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u;
}

fn half_value(bits: u32) -> f32 {
    return select(bitcast<f32>((bits << 13u) + 0x38000000u), f32(bits) * 0x1p-24f, bits < 0x400u);
}

const NO_NUMBER: u32 = 0x7e00u;

// The least half with `127 s >= largest`, by the bits of the largest value; NaN if there is none.
fn scale_of(largest_bits: u32) -> u32 {
    let largest = bitcast<f32>(largest_bits);
    // Beyond 127 times the largest half.
    if largest_bits > 0x4afde040u {
        return NO_NUMBER;
    }
    // The quotient may be a little off, and is rounded.
    var bits = half_bits(largest / 127.0);
    if 127.0 * half_value(bits) < largest {
        bits += 1u;
    } else if bits > 0u && 127.0 * half_value(bits - 1u) >= largest {
        bits -= 1u;
    }
    return bits;
}

// `round(v / s)`, ties to even: the quotient may be a little off, but what is left of `v` is exact.
fn code_of(v: f32, s: f32) -> u32 {
    var code = round(v / s);
    let left = v - code * s;
    let odd = fract(0.5 * code) != 0.0;
    if left > 0.5 * s || (left == 0.5 * s && odd) {
        code += 1.0;
    } else if left < -0.5 * s || (left == -0.5 * s && odd) {
        code -= 1.0;
    }
    return u32(i32(code)) & 0xffu;
}

// The bits of the scale of a group of row `row`, whose values are the kernel's `stored_value(row, channel)`, 0 behind the last.
fn group_scale(row: u32, group: u32) -> u32 {
    var largest = 0u;
    for (var i = 0u; i < 32u; i++) {
        largest = max(largest, bitcast<u32>(stored_value(row, 32u * group + i)) & 0x7fffffffu);
    }
    return scale_of(largest);
}

// Four codes of a row, from channel `c` on, given the bits of their scale.
fn stored_codes(row: u32, c: u32, scale: u32) -> u32 {
    if scale == 0u || scale == NO_NUMBER {
        return 0u;
    }
    let s = half_value(scale);
    return code_of(stored_value(row, c), s)
        | (code_of(stored_value(row, c + 1u), s) << 8u)
        | (code_of(stored_value(row, c + 2u), s) << 16u)
        | (code_of(stored_value(row, c + 3u), s) << 24u);
}
