//! Floats of 4 and 8 bits: the codes and scales of the `mxfp4`, `mxfp8`, `nvfp4` and fp8 layouts.

/// The values of e2m1 codes: sign, two bits of exponent, one of mantissa.
pub(crate) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The largest e2m1 value.
pub(crate) const E2M1_MAX: f32 = 6.0;

/// The largest e4m3 value.
pub(crate) const E4M3_MAX: f32 = 448.0;

/// The values of e4m3 codes: sign, four bits of exponent (bias 7), three of mantissa; no infinity, 0x7f and 0xff are
/// not numbers.
pub(crate) const E4M3: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = (code as u32 >> 3 & 15, code as u32 & 7);
        let magnitude = if code & 127 == 127 {
            f32::NAN
        } else if exponent == 0 {
            // Subnormal: eighths of 2^-6.
            mantissa as f32 / 512.0
        } else {
            f32::from_bits((exponent + 127 - 7) << 23 | mantissa << 20)
        };
        values[code] = if code >= 128 { -magnitude } else { magnitude };
        code += 1;
    }
    values
};

/// The power of two an e8m0 byte stands for. As in MLX, 255 is infinity (the standard calls it not a number).
#[inline]
pub(crate) fn e8m0(byte: u8) -> f32 {
    // 2^-127 is subnormal in f32.
    f32::from_bits(if byte == 0 { 1 << 22 } else { u32::from(byte) << 23 })
}

/// The e2m1 code nearest to a value. Of two equally near ones it is the one nearer to zero, and zero has no sign: MLX on
/// the CPU takes the first of the nearest.
pub(crate) fn to_e2m1(value: f32) -> u8 {
    const BETWEEN: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    let magnitude = value.abs();
    let code = BETWEEN.iter().filter(|limit| magnitude > **limit).count() as u8;
    if value < 0.0 && code > 0 { code | 8 } else { code }
}

/// The e4m3 code nearest to a value, ties to even; what is larger than the largest becomes it, and so does what is not
/// a number.
pub(crate) fn to_e4m3(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    let magnitude = value.abs();
    let code = if magnitude < 1.0 / 64.0 {
        // Subnormal: a count of 2^-9. Rounding up to 8 is the smallest normal code.
        (magnitude * 512.0).round_ties_even() as u8
    } else if magnitude <= E4M3_MAX {
        let bits = magnitude.to_bits();
        let odd = bits >> 20 & 1;
        // From bias 127 to 7, then to nearest: a carry out of the mantissa is the next exponent.
        ((bits - (120 << 23) + 0x7_ffff + odd) >> 20) as u8
    } else {
        0x7e
    };
    sign | code
}

/// The smallest power of two not below `value`, as an e8m0 byte; that of 1 for zero, as in MLX.
pub(crate) fn to_e8m0_up(value: f32) -> u8 {
    let bits = value.to_bits();
    let (exponent, mantissa) = ((bits >> 23) as u8, bits & 0x7f_ffff);
    match (exponent, mantissa) {
        (0, 0) => 127,
        // Subnormal: 2^-127 is half way through them.
        (0, _) => u8::from(mantissa > 1 << 22),
        // Not beyond the largest power: the codes take the rest.
        _ => exponent.saturating_add(u8::from(mantissa > 0)).min(254),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_code_of_its_value() {
        for (code, value) in E2M1.iter().enumerate() {
            // Zero has no sign.
            assert_eq!(to_e2m1(*value), if code == 8 { 0 } else { code as u8 });
        }
        for (code, value) in E4M3.iter().enumerate() {
            if value.is_nan() {
                assert_eq!(code & 127, 127);
            } else {
                assert_eq!(to_e4m3(*value), code as u8, "{value}");
            }
        }
        assert_eq!((E4M3[1], E4M3[8], E4M3[0x7e], E4M3[0xfe]), (1.0 / 512.0, 1.0 / 64.0, 448.0, -448.0));
        for byte in 0..=254 {
            assert_eq!(to_e8m0_up(e8m0(byte)), byte);
        }
        assert_eq!((e8m0(0), e8m0(127), e8m0(255)), (2f32.powi(-127), 1.0, f32::INFINITY));
    }

    #[test]
    fn values_between_two_codes_take_the_nearer() {
        let finite: Vec<u8> = (0..0x7e).collect();
        for code in finite {
            let (low, high) = (E4M3[code as usize], E4M3[code as usize + 1]);
            let middle = (low + high) / 2.0;
            assert_eq!(to_e4m3(middle), code + (code & 1), "tie at {middle}");
            assert_eq!(to_e4m3(middle.next_up()), code + 1);
            assert_eq!(to_e4m3(-middle.next_down()), code | 0x80);
        }
        for value in [448.0, 449.0, 464.0, 480.0, 1e9, f32::INFINITY] {
            assert_eq!(to_e4m3(value), 0x7e);
            assert_eq!(to_e4m3(-value), 0xfe);
        }
        for code in 0..7u8 {
            let middle = (E2M1[code as usize] + E2M1[code as usize + 1]) / 2.0;
            assert_eq!(to_e2m1(middle), code, "tie at {middle}");
            assert_eq!(to_e2m1(middle.next_up()), code + 1);
            assert_eq!(to_e2m1(-middle.next_up()), (code + 1) | 8);
        }
        assert_eq!((to_e2m1(f32::INFINITY), to_e2m1(-1e30)), (7, 15));
    }

    #[test]
    fn scales_round_up_to_a_power_of_two() {
        assert_eq!(to_e8m0_up(0.0), 127);
        assert_eq!(to_e8m0_up(1.0f32.next_up()), 128);
        assert_eq!(to_e8m0_up(1.0f32.next_down()), 127);
        assert_eq!(to_e8m0_up(f32::MAX), 254);
        assert_eq!(to_e8m0_up(f32::MIN_POSITIVE), 1);
        assert_eq!(to_e8m0_up(f32::MIN_POSITIVE / 2.0), 0);
        assert_eq!(to_e8m0_up((f32::MIN_POSITIVE / 2.0).next_up()), 1);
    }
}
