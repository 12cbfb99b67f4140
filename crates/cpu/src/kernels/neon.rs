//! Integer products with NEON, for few tokens.
//!
//! As with AVX-512, a 15-bit activation is two bytes, `i = 128 * high + low`, and codes are unpacked to bytes: where the
//! machine has `sdot`, it multiplies 16 of them and adds fours; where not, a few instructions do the same, no slower than
//! products of 16 bits would. Activations have been arranged to meet the codes:
//! - 2 and 4 bits: the quarters or halves of the bytes of a register are every fourth or second element;
//! - other widths: bytes in order. Those of 8 bits are made signed by subtracting 128, for which the bias makes up.

use std::arch::aarch64::*;

use super::codes::{Codes, FP4_CODES, Packing, ScaleType};
use super::forms::{by_form, is_stream, window, window_bytes};
use super::rounded::{Form, Rounded};
use super::scalar;
use crate::vector::widen_half;

/// Elements in a register of codes, or in the two windows that make one.
const fn elements(packing: usize) -> usize {
    match packing {
        2 => 64,
        8 => 16,
        _ => 32,
    }
}

/// Registers of 16 bytes that [`split`] makes of a register of codes.
const fn planes(packing: usize) -> usize {
    elements(packing) / 16
}

/// Bytes that a register of codes takes in a row.
const fn register_bytes(packing: usize) -> usize {
    if packing == 0 { 16 } else { elements(packing) * packing / 8 }
}

/// Writes whole numbers as bytes, in the order that the kernels for `form` want.
pub(super) fn arrange(form: Form, numbers: &[i16], out: &mut [i8]) {
    match form.packing {
        Packing::Bits(2) => arrange_blocks::<4>(numbers, out),
        Packing::Bits(4) | Packing::Fp4 => arrange_blocks::<2>(numbers, out),
        Packing::Bits(_) => arrange_blocks::<1>(numbers, out),
    }
}

/// Of every block of `[16][PLANES]` numbers, writes 16 high and 16 low bytes of each plane.
fn arrange_blocks<const PLANES: usize>(numbers: &[i16], out: &mut [i8]) {
    for (numbers, out) in numbers.chunks_exact(16 * PLANES).zip(out.chunks_exact_mut(32 * PLANES)) {
        for (plane, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for i in 0..16 {
                let number = numbers[i * PLANES + plane];
                let high = number.wrapping_add(64) >> 7;
                out[i] = high as i8;
                out[16 + i] = (number - 128 * high) as i8;
            }
        }
    }
}

/// What picks 16 codes of a stream out of a window, for both windows.
struct Pick {
    /// The byte that a code begins in, and the next one.
    bytes: [[uint8x16_t; 2]; 2],
    /// How far to shift these to the left.
    shifts: [int8x16_t; 2],
    mask: uint8x16_t,
}

impl Pick {
    #[inline]
    #[target_feature(enable = "neon")]
    fn new<const PACKING: usize>() -> Self {
        let (mut bytes, mut shifts) = ([[[0u8; 16]; 2]; 2], [[0i8; 16]; 2]);
        for i in 0..16 {
            let bit = i * PACKING;
            shifts[0][i] = -((bit % 8) as i8);
            shifts[1][i] = 8 - (bit % 8) as i8;
            for (w, bytes) in bytes.iter_mut().enumerate() {
                let first = if is_stream(PACKING) { window(PACKING, w == 1).1 + bit / 8 } else { 0 };
                bytes[0][i] = first as u8;
                // One beyond the table is 0.
                bytes[1][i] = first as u8 + 1;
            }
        }
        // SAFETY: 16 bytes each.
        unsafe {
            Self {
                bytes: [
                    [vld1q_u8(bytes[0][0].as_ptr()), vld1q_u8(bytes[0][1].as_ptr())],
                    [vld1q_u8(bytes[1][0].as_ptr()), vld1q_u8(bytes[1][1].as_ptr())],
                ],
                shifts: [vld1q_s8(shifts[0].as_ptr()), vld1q_s8(shifts[1].as_ptr())],
                mask: vdupq_n_u8(((1u32 << PACKING) - 1) as u8),
            }
        }
    }
}

/// Reads a register of codes and unpacks them to signed bytes, in [`planes`] registers.
///
/// # Safety
/// [`register_bytes`] can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn split<const PACKING: usize>(place: *const u8, pick: &Pick) -> [int8x16_t; 4] {
    let mut out = [vdupq_n_s8(0); 4];
    if is_stream(PACKING) {
        for (w, out) in out.iter_mut().enumerate().take(2) {
            let from = window(PACKING, w == 1).0;
            // SAFETY: the second window ends with the register, and the first before.
            let stored = unsafe {
                match window_bytes(PACKING) {
                    2 => {
                        let both = place.add(from).cast::<u16>().read_unaligned();
                        vreinterpretq_u8_u16(vdupq_n_u16(both))
                    }
                    8 => vcombine_u8(vld1_u8(place.add(from)), vdup_n_u8(0)),
                    _ => vld1q_u8(place.add(from)),
                }
            };
            let first = vshlq_u8(vqtbl1q_u8(stored, pick.bytes[w][0]), pick.shifts[0]);
            let second = vshlq_u8(vqtbl1q_u8(stored, pick.bytes[w][1]), pick.shifts[1]);
            *out = vreinterpretq_s8_u8(vandq_u8(vorrq_u8(first, second), pick.mask));
        }
        return out;
    }
    // SAFETY: such registers are 16 bytes.
    let stored = unsafe { vld1q_u8(place) };
    let zero = vdupq_n_u8(0);
    let split = match PACKING {
        0 | 4 => {
            let (low, high) = (vandq_u8(stored, vdupq_n_u8(15)), vshrq_n_u8::<4>(stored));
            if PACKING == 4 {
                [low, high, zero, zero]
            } else {
                // SAFETY: 16 bytes.
                let table = unsafe { vld1q_u8(FP4_CODES.as_ptr()) };
                [vqtbl1q_u8(table, low), vqtbl1q_u8(table, high), zero, zero]
            }
        }
        2 => {
            let mask = vdupq_n_u8(3);
            [
                vandq_u8(stored, mask),
                vandq_u8(vshrq_n_u8::<2>(stored), mask),
                vandq_u8(vshrq_n_u8::<4>(stored), mask),
                vshrq_n_u8::<6>(stored),
            ]
        }
        _ => [veorq_u8(stored, vdupq_n_u8(128)), zero, zero, zero],
    };
    for p in 0..4 {
        out[p] = vreinterpretq_s8_u8(split[p]);
    }
    out
}

/// Adds to each lane of `sum` the products of its four bytes, of all planes. `DOT` says whether the machine has `sdot`.
#[inline]
#[target_feature(enable = "neon")]
fn dot<const PACKING: usize, const DOT: bool>(
    mut sum: int32x4_t,
    codes: &[int8x16_t; 4],
    activations: &[int8x16_t; 4],
) -> int32x4_t {
    if DOT {
        for p in 0..planes(PACKING) {
            // There is no stable intrinsic, and the compiler does not know that the machine has the instruction.
            // SAFETY: an instruction that the machine has, on registers alone.
            unsafe {
                std::arch::asm!(
                    ".arch_extension dotprod",
                    "sdot {sum:v}.4s, {codes:v}.16b, {activations:v}.16b",
                    sum = inout(vreg) sum,
                    codes = in(vreg) codes[p],
                    activations = in(vreg) activations[p],
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
        }
        return sum;
    }
    // Sums of 16 bits hold the products of two bytes of 8-bit codes, and of as many planes as narrower ones have.
    let mut lower = vmull_s8(vget_low_s8(codes[0]), vget_low_s8(activations[0]));
    let mut upper = vmull_high_s8(codes[0], activations[0]);
    for p in 1..planes(PACKING) {
        lower = vmlal_s8(lower, vget_low_s8(codes[p]), vget_low_s8(activations[p]));
        upper = vmlal_high_s8(upper, codes[p], activations[p]);
    }
    vpadalq_s16(sum, vpaddq_s16(lower, upper))
}

/// `y[i] = W[first + i] x[t]`. Nothing is asked for in advance: there is no stable intrinsic for it.
pub(super) fn rows(w: &Codes<'_>, first: usize, x: &Rounded, t: usize, y: &mut [f32], _next: &[u8]) {
    assert!(first + y.len() <= w.rows && x.cols == w.cols && t < x.tokens() && x.form == Form::of(w, false));
    // SAFETY: `Codes` has checked its slices; rows, token, form and instructions are checked.
    unsafe {
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            by_form!(w.packing, w.group, rows_of(w, first, x, t, y), true);
        } else {
            by_form!(w.packing, w.group, rows_of(w, first, x, t, y), false);
        }
    }
}

/// # Safety
/// The rows, the token and the form fit, and the machine has `sdot` if `DOT`.
#[target_feature(enable = "neon")]
unsafe fn rows_of<const PACKING: usize, const GROUP: usize, const DOT: bool>(
    w: &Codes<'_>,
    first: usize,
    x: &Rounded,
    t: usize,
    y: &mut [f32],
) {
    // The scales and biases of four rows; on the stack unless rows are very long.
    let (mut few, mut many);
    let room = 8 * scale_stride(w);
    let buffer: &mut [f32] = if room <= 512 {
        few = [0.0; 512];
        &mut few
    } else {
        many = vec![0.0; room];
        &mut many
    };
    let (fours, rest) = y.as_chunks_mut::<4>();
    for (i, y) in fours.iter_mut().enumerate() {
        // SAFETY: as for this function.
        *y = unsafe { some_rows::<PACKING, GROUP, DOT, 4>(w, first + 4 * i, x, t, buffer) };
    }
    for (i, y) in rest.iter_mut().enumerate() {
        // SAFETY: as for this function.
        [*y] = unsafe { some_rows::<PACKING, GROUP, DOT, 1>(w, first + 4 * fours.len() + i, x, t, buffer) };
    }
}

/// Room for the scales of a row: they are read four at a time, or up to two.
fn scale_stride(w: &Codes<'_>) -> usize {
    w.groups().next_multiple_of(4)
}

/// Stored scales as floats, as many as there is room for.
#[inline(always)]
fn unpack_scales(scale_type: ScaleType, bytes: &[u8], out: &mut [f32]) {
    match scale_type {
        ScaleType::Bf16 => {
            for (out, pair) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*pair)) << 16);
            }
        }
        ScaleType::F16 => {
            for (out, pair) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = widen_half(u16::from_le_bytes(*pair));
            }
        }
        ScaleType::F32 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        ScaleType::E8m0 => out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = scalar::e8m0(*byte)),
    }
}

/// Products of `ROWS` neighbouring rows with one token.
///
/// # Safety
/// As for `rows_of`; `buffer` has room for the scales and biases of `ROWS` rows, and is 0 beyond them.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn some_rows<const PACKING: usize, const GROUP: usize, const DOT: bool, const ROWS: usize>(
    w: &Codes<'_>,
    first: usize,
    x: &Rounded,
    t: usize,
    buffer: &mut [f32],
) -> [f32; ROWS] {
    let (groups, stride, scale_bytes) = (w.groups(), scale_stride(w), w.scale_row_bytes());
    let (scales, biases) = buffer.split_at_mut(4 * stride);
    // Scales become floats first; biases meet the sums of their groups at once.
    let sums = x.sums[t * x.sum_stride()..][..stride].as_chunks::<4>().0;
    let mut total = [vdupq_n_f32(0.0); ROWS];
    for row in 0..ROWS {
        let at = (first + row) * scale_bytes;
        let scales = &mut scales[row * stride..][..groups];
        let padded = &mut biases[row * stride..][..stride];
        let biases = &mut padded[..groups];
        unpack_scales(w.scale_type, &w.scales[at..], scales);
        if PACKING == 0 {
            for (bias, scale) in biases.iter_mut().zip(scales) {
                *bias = *scale * w.bias_factor();
                *scale *= w.scale_factor();
            }
        } else {
            unpack_scales(w.scale_type, &w.biases[at..], biases);
            if PACKING == 8 {
                biases.iter_mut().zip(scales).for_each(|(bias, scale)| *bias += 128.0 * *scale);
            }
        }
        for (sums, biases) in sums.iter().zip(padded.as_chunks::<4>().0) {
            // SAFETY: four floats each.
            unsafe {
                total[row] = vfmaq_f32(total[row], vld1q_f32(sums.as_ptr()), vld1q_f32(biases.as_ptr()))
            }
        }
    }

    // A step is a group, or a register where that is more; only of 2 bits is that two groups of 32.
    let registers = const { if GROUP > elements(PACKING) { GROUP / elements(PACKING) } else { 1 } };
    let spans = elements(PACKING) > GROUP;
    let (row_bytes, step_bytes) = (w.row_bytes(), registers * register_bytes(PACKING));
    let pick = Pick::new::<PACKING>();
    // SAFETY: all reads of codes are inside rows `first..first + ROWS`, the last ones of a row by way of a copy; activations
    // and scales are padded to what is read.
    unsafe {
        let mut activations = x.data.as_ptr().add(t * x.stride);
        let mut scales = scales.as_ptr();
        for i in 0..row_bytes.div_ceil(step_bytes) {
            let mut codes = w.codes.as_ptr().add(first * row_bytes + i * step_bytes);
            let mut apart = row_bytes;
            let mut copy = [[0; 16]; ROWS];
            let rest = row_bytes - i * step_bytes;
            if spans && rest < step_bytes {
                for (row, copy) in copy.iter_mut().enumerate() {
                    codes.add(row * row_bytes).copy_to_nonoverlapping(copy.as_mut_ptr(), rest);
                }
                (codes, apart) = (copy.as_ptr().cast(), 16);
            }
            let mut high = [vdupq_n_s32(0); ROWS];
            let mut low = [vdupq_n_s32(0); ROWS];
            for register in 0..registers {
                let mut numbers = [[vdupq_n_s8(0); 4]; 2];
                for (half, numbers) in numbers.iter_mut().enumerate() {
                    for (p, numbers) in numbers.iter_mut().enumerate().take(planes(PACKING)) {
                        *numbers = vld1q_s8(activations.add(32 * p + 16 * half));
                    }
                }
                for row in 0..ROWS {
                    let place = codes.add(row * apart + register * register_bytes(PACKING));
                    let split = split::<PACKING>(place, &pick);
                    high[row] = dot::<PACKING, DOT>(high[row], &split, &numbers[0]);
                    low[row] = dot::<PACKING, DOT>(low[row], &split, &numbers[1]);
                }
                activations = activations.wrapping_add(32 * planes(PACKING));
            }
            for row in 0..ROWS {
                let sum = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32::<7>(high[row]), low[row]));
                let place = scales.add(row * stride);
                let scale = if spans {
                    let pair = vld1_f32(place);
                    vcombine_f32(vdup_lane_f32::<0>(pair), vdup_lane_f32::<1>(pair))
                } else {
                    vld1q_dup_f32(place)
                };
                total[row] = vfmaq_f32(total[row], sum, scale);
            }
            scales = scales.wrapping_add(if spans { 2 } else { 1 });
        }
    }
    let mut y = [0.0; ROWS];
    for row in 0..ROWS {
        y[row] = x.scales[t] * vaddvq_f32(total[row]);
    }
    y
}
