//! Rows of 8-bit codes with a scale for every [`GROUP`] channels (`CacheFloat::Q8`): how they are made, and how attention takes them in.
//!
//! With exact numerics codes become floats. With fast numerics they become whole numbers with one scale per row, the way `pairs.rs` has
//! them, in memory near the processor and once for all queries that share them: `number = round(code * m / 256)` with `m = round(256 s / unit)`, where `s` is the scale of the group
//! and `unit` that of the row, found when the row was written. A `unit` is so large that no number is beyond 2^14 and their norm is below 2^16.

use ::backend::CacheFloat;
use half::f16;

use super::dense::PANEL;
use super::pairs::{pairs, whole};
use super::softmax::BLOCK;
use crate::kernels::Set;
use crate::vector::{vectorised, widen_half};

/// Channels that share a scale.
pub(crate) const GROUP: usize = CacheFloat::GROUP;

/// The largest code.
const LARGEST_CODE: f32 = 127.0;

/// The largest number that the largest code may become: with it `m` is still a number of 16 bits.
const LARGEST: f32 = 16255.0;

/// The largest norm of a row's numbers, with room for the rounding of what it is found from.
const NORM: f32 = 65_500.0;

/// The least half that is no less than `x`, which is positive and finite; infinite where there is none.
fn half_above(x: f32) -> f16 {
    let near = f16::from_f32(x);
    if near.to_f32() < x { f16::from_bits(near.to_bits() + 1) } else { near }
}

/// The scale of a group, and its codes.
fn round_group(group: &[f32], codes: &mut [i8]) -> f16 {
    let largest = group.iter().fold(0.0f32, |m, v| if v.abs() > m { v.abs() } else { m });
    // The quotient is rounded, so that the half above it may be one too small or too large.
    let mut scale = half_above(largest / LARGEST_CODE);
    if scale.to_f32() * LARGEST_CODE < largest {
        scale = f16::from_bits(scale.to_bits() + 1);
    }
    let below = f16::from_bits(scale.to_bits().max(1) - 1);
    if below.to_f32() * LARGEST_CODE >= largest {
        scale = below;
    }
    if !scale.is_finite() || group.iter().any(|v| v.is_nan()) {
        codes.fill(0);
        return f16::NAN;
    }
    // Rounded quotients are on the same side of a tie as exact ones: scales have too few bits for anything else.
    let wide = scale.to_f32();
    let code = |v: f32| if wide == 0.0 { 0 } else { (v / wide).round_ties_even() as i8 };
    codes.iter_mut().zip(group).for_each(|(c, v)| *c = code(*v));
    scale
}

/// Rounds a row to codes and the scales of its groups.
pub(crate) fn round_row(row: &[f32], codes: &mut [i8], scales: &mut [f16]) {
    for ((group, codes), scale) in row.chunks(GROUP).zip(codes.chunks_mut(GROUP)).zip(scales) {
        *scale = round_group(group, codes);
    }
}

/// The scale of a row's numbers: NaN where one of its groups has that.
pub(crate) fn unit(codes: &[i8], scales: &[f16]) -> f32 {
    let (mut largest, mut squares) = (0.0f32, 0.0f32);
    for (codes, scale) in codes.chunks(GROUP).zip(scales) {
        let sum: i32 = codes.iter().map(|c| i32::from(*c) * i32::from(*c)).sum();
        let scale = scale.to_f32();
        if !scale.is_finite() {
            return f32::NAN;
        }
        largest = largest.max(scale.abs());
        squares += sum as f32 * scale * scale;
    }
    // Numbers and multipliers are rounded, by at most three quarters of a unit together.
    let norm = NORM - (codes.len() as f32).sqrt();
    (largest * (LARGEST_CODE / LARGEST)).max(squares.sqrt() / norm)
}

/// How the codes of a block lie, and their numbers.
#[derive(Clone, Copy)]
pub(crate) enum Layout {
    /// `[pair of channels][position]` for every [`PANEL`] positions.
    Panels,
    /// `[position][channel]`, but numbers `[pair of positions][channel]`.
    Pairs,
    /// `[position][channel]`
    Rows,
}

/// Codes of a block's first positions, the scales `[group][BLOCK]` of its groups, and the units of its rows.
#[derive(Clone, Copy)]
pub(crate) struct Codes<'a> {
    pub codes: &'a [i8],
    pub scales: &'a [f16],
    pub units: &'a [f32],
}

impl<'a> Codes<'a> {
    /// The codes, to ask the memory for them ahead of time.
    pub fn words(self) -> &'a [i16] {
        // SAFETY: every pattern of bits is a number.
        unsafe { self.codes.align_to() }.1
    }

    /// As whole numbers; rows have `width` channels. `memory` has room for them.
    pub fn widened(self, set: Set, layout: Layout, width: usize, memory: &'a mut [f32]) -> &'a [i16] {
        let numbers = &mut pairs(memory).as_flattened_mut()[..self.codes.len()];
        match layout {
            Layout::Panels => widen_panels(set, self, width, numbers),
            Layout::Pairs => widen_pairs(set, self, width, numbers),
            Layout::Rows => widen_rows(set, self, width, numbers),
        }
        numbers
    }

    /// As floats, which are rows of `width` channels.
    pub fn write(self, width: usize, out: &mut [f32]) {
        let rows = self.codes.chunks_exact(width).zip(out.chunks_exact_mut(width));
        for (slot, (codes, out)) in rows.enumerate() {
            for (g, (codes, out)) in codes.chunks(GROUP).zip(out.chunks_mut(GROUP)).enumerate() {
                let scale = widen_half(self.scales[g * BLOCK + slot].to_bits());
                codes.iter().zip(out).for_each(|(c, out)| *out = f32::from(*c) * scale);
            }
        }
    }
}

/// The inverse of every unit, 0 where that is not finite: there all numbers are 0, and the unit says the rest.
#[inline(always)]
fn inverses(units: &[f32]) -> [f32; BLOCK] {
    let units: &[f32; BLOCK] = units.first_chunk().expect("a unit for every position of a block");
    units.map(|unit| if unit > 0.0 { 256.0 / unit } else { 0.0 })
}

/// `m` of a group for every position.
#[inline(always)]
fn multipliers(scales: &[f16; BLOCK], inverses: &[f32; BLOCK]) -> [i16; BLOCK] {
    let mut multipliers = [0; BLOCK];
    for i in 0..BLOCK {
        multipliers[i] = whole(widen_half(scales[i].to_bits()) * inverses[i]) as i16;
    }
    multipliers
}

/// `round(code * m / 256)`, in numbers of 16 bits: `m` in two bytes, of which the lower one is rounded.
#[inline(always)]
fn scaled(code: i8, m: i16) -> i16 {
    let code = i16::from(code);
    code.wrapping_mul(m >> 8).wrapping_add(code.wrapping_mul(m & 255).wrapping_add(128) >> 8)
}

/// Scales codes, each with the multiplier in the same place of as many.
#[inline(always)]
fn scale_codes<const N: usize>(codes: &[i8], multipliers: &[i16; N], numbers: &mut [i16]) {
    let (code_chunks, codes) = codes.as_chunks::<N>();
    let (number_chunks, numbers) = numbers.as_chunks_mut::<N>();
    for (codes, numbers) in code_chunks.iter().zip(number_chunks) {
        for i in 0..N {
            numbers[i] = scaled(codes[i], multipliers[i]);
        }
    }
    for ((number, code), m) in numbers.iter_mut().zip(codes).zip(multipliers) {
        *number = scaled(*code, *m);
    }
}

vectorised! {
    fn widen_panels<A>(block: Codes<'_>, width: usize, numbers: &mut [i16]) {
        let inverses = inverses(block.units);
        for (g, scales) in block.scales.as_chunks::<BLOCK>().0.iter().enumerate() {
            let multipliers = multipliers(scales, &inverses);
            let range = g * GROUP * PANEL..((g + 1) * GROUP).min(width) * PANEL;
            let panels = block.codes.chunks_exact(PANEL * width).zip(numbers.chunks_exact_mut(PANEL * width));
            for ((codes, numbers), m) in panels.zip(multipliers.as_chunks::<PANEL>().0) {
                let mut twice = [0; 2 * PANEL];
                for i in 0..2 * PANEL {
                    twice[i] = m[i / 2];
                }
                scale_codes(&codes[range.clone()], &twice, &mut numbers[range.clone()]);
            }
        }
    }
}

vectorised! {
    fn widen_pairs<A>(block: Codes<'_>, width: usize, numbers: &mut [i16]) {
        let inverses = inverses(block.units);
        for (g, scales) in block.scales.as_chunks::<BLOCK>().0.iter().enumerate() {
            let multipliers = multipliers(scales, &inverses);
            let range = g * GROUP..((g + 1) * GROUP).min(width);
            let rows = block.codes.chunks_exact(2 * width).zip(numbers.chunks_exact_mut(2 * width));
            for ((codes, numbers), m) in rows.zip(multipliers.as_chunks::<2>().0) {
                let (even, odd) = codes.split_at(width);
                let (even, odd) = (&even[range.clone()], &odd[range.clone()]);
                let pairs = numbers.as_chunks_mut::<2>().0[range.clone()].iter_mut();
                for ((pair, even), odd) in pairs.zip(even).zip(odd) {
                    *pair = [scaled(*even, m[0]), scaled(*odd, m[1])];
                }
            }
        }
    }
}

vectorised! {
    fn widen_rows<A>(block: Codes<'_>, width: usize, numbers: &mut [i16]) {
        let inverses = inverses(block.units);
        for (g, scales) in block.scales.as_chunks::<BLOCK>().0.iter().enumerate() {
            let multipliers = multipliers(scales, &inverses);
            let range = g * GROUP..((g + 1) * GROUP).min(width);
            let rows = block.codes.chunks_exact(width).zip(numbers.chunks_exact_mut(width));
            for ((codes, numbers), m) in rows.zip(multipliers) {
                scale_codes(&codes[range.clone()], &[m; GROUP], &mut numbers[range.clone()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between -2 and 2, one of fifty far larger.
    fn floats_of(len: usize, seed: usize) -> Vec<f32> {
        let value = |i: usize| ((i * 7919 + seed * 104_729) % 1013) as f32 / 253.0 - 2.0;
        (0..len).map(|i| value(i) * if i % 50 == seed % 50 { 100.0 } else { 1.0 }).collect()
    }

    /// Rows of every kind: odd widths, outliers, all alike, one alone, the largest that there are scales for, and very small ones.
    fn rows() -> Vec<Vec<f32>> {
        let mut rows: Vec<Vec<f32>> =
            [1, 2, 31, 33, 128, 256, 576].iter().flat_map(|n| (0..20).map(|i| floats_of(*n, i))).collect();
        for n in [1, 7, 32, 64, 65, 256, 576, 1024] {
            for v in [1.0, -1.5, 0.999, 1e-3, 1e-5, 3e-8, 127.0 * 65504.0] {
                rows.push(vec![v; n]);
                rows.push((0..n).map(|i| if i == n / 2 { v } else { 0.0 }).collect());
                rows.push((0..n).map(|i| v / (1 + i) as f32).collect());
            }
        }
        rows
    }

    fn rounded(row: &[f32]) -> (Vec<i8>, Vec<f16>) {
        let (mut codes, mut scales) = (vec![1; row.len()], vec![f16::ONE; row.len().div_ceil(GROUP)]);
        round_row(row, &mut codes, &mut scales);
        (codes, scales)
    }

    fn kept(codes: &[i8], scales: &[f16]) -> Vec<f32> {
        let value = |(i, c): (usize, &i8)| f32::from(*c) * scales[i / GROUP].to_f32();
        codes.iter().enumerate().map(value).collect()
    }

    #[test]
    fn scales_are_the_least_that_clip_nothing_and_rows_stay() {
        for row in rows() {
            let (codes, scales) = rounded(&row);
            for (g, (group, scale)) in row.chunks(GROUP).zip(&scales).enumerate() {
                let largest = group.iter().fold(0.0, |m, v| f64::from(v.abs()).max(m));
                assert!(127.0 * scale.to_f64() >= largest, "{row:?}");
                let below = f16::from_bits(scale.to_bits().max(1) - 1).to_f64();
                assert!(largest == 0.0 && scale.to_bits() == 0 || 127.0 * below < largest, "{row:?}");
                for (v, c) in group.iter().zip(&codes[g * GROUP..]) {
                    let s = scale.to_f64();
                    let code = if s == 0.0 { 0.0 } else { (f64::from(*v) / s).round_ties_even() };
                    assert_eq!(f64::from(*c), code, "{v} of {row:?}");
                }
            }
            // Of the smallest scales there are too few for the largest code to be 127.
            if scales.iter().all(|s| s.is_normal()) {
                assert_eq!(rounded(&kept(&codes, &scales)), (codes, scales));
            }
        }
    }

    #[test]
    fn ties_go_to_even_codes() {
        // The scale is 1.
        let (codes, scales) = rounded(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127.0]);
        assert_eq!(
            (codes.as_slice(), scales.as_slice()),
            (&[127, 0, 2, 2, 0, -2, -2, -127][..], &[f16::ONE][..])
        );
    }

    #[test]
    fn what_is_no_number_is_its_groups_only() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e7] {
            let mut row = vec![1.0; 70];
            row[40] = bad;
            let (codes, scales) = rounded(&row);
            assert!(scales[1].is_nan() && codes[32..64].iter().all(|c| *c == 0), "{bad}");
            assert!([0, 2].iter().all(|g| scales[*g].is_finite()) && codes[0] == 127 && codes[69] == 127);
            assert!(unit(&codes, &scales).is_nan());
        }
        assert_eq!(rounded(&[0.0, -0.0]), (vec![0, 0], vec![f16::ZERO]));
        assert_eq!(unit(&[0; 40], &[f16::ZERO; 2]), 0.0);
    }

    /// Where number `i` of row `slot` lies.
    fn place(layout: Layout, width: usize, slot: usize, i: usize) -> usize {
        match layout {
            Layout::Panels => slot / PANEL * PANEL * width + i / 2 * 2 * PANEL + slot % PANEL * 2 + i % 2,
            Layout::Pairs | Layout::Rows => slot * width + i,
        }
    }

    /// Where it is then.
    fn widened_place(layout: Layout, width: usize, slot: usize, i: usize) -> usize {
        match layout {
            Layout::Pairs => slot / 2 * 2 * width + 2 * i + slot % 2,
            Layout::Panels | Layout::Rows => place(layout, width, slot, i),
        }
    }

    #[test]
    fn widened_rows_are_near_and_small_enough() {
        for layout in [Layout::Panels, Layout::Pairs, Layout::Rows] {
            for row in rows() {
                let width = row.len().next_multiple_of(2);
                let (codes, scales) = rounded(&row);
                let groups = scales.len();
                // The row in two slots; one that is no number, and zeros, beside it.
                let slots = [3, 40];
                let mut block = (vec![0; BLOCK * width], vec![f16::ZERO; BLOCK * groups], vec![0.0; BLOCK]);
                block.1[5] = f16::NAN;
                block.2[5] = f32::NAN;
                for slot in slots {
                    codes.iter().enumerate().for_each(|(i, c)| block.0[place(layout, width, slot, i)] = *c);
                    scales.iter().enumerate().for_each(|(g, s)| block.1[g * BLOCK + slot] = *s);
                    block.2[slot] = unit(&codes, &scales);
                }
                let block = Codes { codes: &block.0, scales: &block.1, units: &block.2 };
                let mut first: Option<Vec<i16>> = None;
                for set in Set::available() {
                    let mut memory = vec![1.0; BLOCK * width];
                    let numbers = block.widened(set, layout, width, &mut memory);
                    for slot in slots {
                        let unit = f64::from(block.units[slot]);
                        let found = |i: usize| f64::from(numbers[widened_place(layout, width, slot, i)]);
                        let norm = (0..width).map(|i| found(i) * found(i)).sum::<f64>().sqrt();
                        assert!((0..width).all(|i| found(i).abs() <= 16384.0) && norm < 65536.0, "{row:?}");
                        for (i, kept) in kept(&codes, &scales).iter().enumerate() {
                            let error = (found(i) * unit - f64::from(*kept)).abs();
                            assert!(
                                error <= 0.76 * unit,
                                "{set:?}: {} not {kept} of {row:?}",
                                found(i) * unit
                            );
                        }
                    }
                    assert!((0..width).all(|i| numbers[widened_place(layout, width, 5, i)] == 0));
                    assert_eq!(*first.get_or_insert(numbers.to_vec()), numbers, "{set:?}");
                }
            }
        }
    }
}
