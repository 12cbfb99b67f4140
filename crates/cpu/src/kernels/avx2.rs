//! Integer products with AVX2: `vpmaddwd` multiplies 16 codes with 16 activations and adds pairs.
//!
//! `panel` is for many tokens. For few, codes are widened to 16 bits where they are; activations, which stay whole, have been arranged to meet them:
//! - 2, 4, 8 bits: a word of 16 bits holds 8, 4 or 2 codes. Shifts and masks make as many registers, and the first holds
//!   the first code of every word;
//! - 1, 3, 5, 6 bits: the two bytes that a code lies in are brought to a word by a shuffle, and a mask leaves the code there,
//!   `2^s` times too large if it begins at bit `s`. Code `l` of every eight lies in lane `l` of the sums, so that lane is
//!   too large by the same factor throughout, and one product at the end of a row puts it right.

pub(crate) mod pairs;
mod panel;
mod scales;

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use scales::Scales;

use super::codes::{Codes, FP4_CODES, MAX_GROUPS, Packing};
use super::forms::{by_form, is_stream, window, window_bytes};
use super::rounded::{Form, Rounded};

pub(super) use panel::{Panel, panel};

/// How far ahead of their use codes are asked for, in the order of addresses: the hardware does not look beyond a page.
const AHEAD: usize = 2048;

/// Rows that share the loads of activations. More would save little, and the hardware follows fewer streams of memory better.
const TOGETHER: usize = 2;

/// Elements in a register of codes, or in the two windows that make one for streams.
const fn elements(packing: usize) -> usize {
    match packing {
        2 => 128,
        0 | 4 => 64,
        _ => 32,
    }
}

/// Registers of 16 words that [`split`] makes of a register of codes.
const fn planes(packing: usize) -> usize {
    elements(packing) / 16
}

/// Bytes that a register of codes takes in a row.
const fn register_bytes(packing: usize) -> usize {
    match packing {
        0 => 32,
        bits => elements(bits) * bits / 8,
    }
}

/// Writes whole numbers in the order that the kernels for `form` want.
pub(super) fn arrange(form: Form, numbers: &[i16], out: &mut [i8]) {
    match form.packing {
        packing if form.panel => panel::arrange(packing, numbers, out),
        // Of every two words of a lane, the first meets code `l` of eight, the second code `l` of the next eight.
        Packing::Bits(1 | 3 | 5 | 6) => arrange_blocks::<8, 2>(numbers, out),
        Packing::Bits(2) => arrange_blocks::<8, 16>(numbers, out),
        Packing::Bits(4) | Packing::Fp4 => arrange_blocks::<4, 16>(numbers, out),
        Packing::Bits(_) => arrange_blocks::<2, 16>(numbers, out),
    }
}

/// Turns blocks of `[B][A]` numbers into `[A][B]`.
fn arrange_blocks<const A: usize, const B: usize>(numbers: &[i16], out: &mut [i8]) {
    let blocks = numbers.chunks_exact(A * B).zip(out.chunks_exact_mut(2 * A * B));
    for (numbers, out) in blocks {
        let out = out.as_chunks_mut::<2>().0;
        for a in 0..A {
            for b in 0..B {
                out[a * B + b] = numbers[b * A + a].to_le_bytes().map(|byte| byte as i8);
            }
        }
    }
}

/// What picks 16 codes of a stream out of a window, for both windows of 32 codes.
#[derive(Clone, Copy)]
struct Pick {
    bytes: [__m256i; 2],
    mask: __m256i,
}

impl Pick {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new<const PACKING: usize>() -> Self {
        let mut bytes = [[0u8; 32]; 2];
        let mut mask = [0u16; 16];
        if is_stream(PACKING) {
            for word in 0..16 {
                // Code `word / 2` of the first eight, and of the second eight.
                let bit = (word % 2 * 8 + word / 2) * PACKING;
                mask[word] = ((1 << PACKING) - 1) << (bit % 8);
                for (w, bytes) in bytes.iter_mut().enumerate() {
                    let first = window(PACKING, w == 1).1 + bit / 8;
                    bytes[2 * word] = first as u8;
                    // The mask leaves nothing of a byte beyond the window.
                    bytes[2 * word + 1] = (first + 1).min(15) as u8;
                }
            }
        }
        // SAFETY: 32 bytes each.
        unsafe {
            Self {
                bytes: [
                    _mm256_loadu_si256(bytes[0].as_ptr().cast()),
                    _mm256_loadu_si256(bytes[1].as_ptr().cast()),
                ],
                mask: _mm256_loadu_si256(mask.as_ptr().cast()),
            }
        }
    }
}

/// Reads a register of codes and widens them to words, in [`planes`] registers.
///
/// # Safety
/// [`register_bytes`] can be read, on a machine with these instructions.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn split<const PACKING: usize>(place: *const u8, pick: &Pick) -> [__m256i; 8] {
    let mut out = [_mm256_setzero_si256(); 8];
    if is_stream(PACKING) {
        for (w, out) in out.iter_mut().enumerate().take(2) {
            let from = window(PACKING, w == 1).0;
            // SAFETY: the second window ends with the register, and the first before.
            let bytes = unsafe {
                match window_bytes(PACKING) {
                    2 => _mm256_set1_epi16(place.add(from).cast::<i16>().read_unaligned()),
                    8 => _mm256_set1_epi64x(place.add(from).cast::<i64>().read_unaligned()),
                    _ => _mm256_broadcastsi128_si256(_mm_loadu_si128(place.add(from).cast())),
                }
            };
            *out = _mm256_and_si256(_mm256_shuffle_epi8(bytes, pick.bytes[w]), pick.mask);
        }
        return out;
    }
    // SAFETY: such registers are 32 bytes.
    split_words::<PACKING>(unsafe { _mm256_loadu_si256(place.cast()) })
}

/// Codes of 16 words, one of each in every register; not of streams.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn split_words<const PACKING: usize>(stored: __m256i) -> [__m256i; 8] {
    let mut out = [_mm256_setzero_si256(); 8];
    let low = _mm256_set1_epi16(0xff);
    match PACKING {
        0 => {
            // SAFETY: 16 bytes.
            let table = unsafe { _mm_loadu_si128(FP4_CODES.as_ptr().cast()) };
            let table = _mm256_broadcastsi128_si256(table);
            let half = _mm256_set1_epi8(15);
            let even = _mm256_shuffle_epi8(table, _mm256_and_si256(stored, half));
            let odd = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16::<4>(stored), half));
            out[0] = _mm256_and_si256(even, low);
            out[1] = _mm256_and_si256(odd, low);
            out[2] = _mm256_srli_epi16::<8>(even);
            out[3] = _mm256_srli_epi16::<8>(odd);
        }
        2 => {
            let mask = _mm256_set1_epi16(3);
            out[0] = _mm256_and_si256(stored, mask);
            out[1] = _mm256_and_si256(_mm256_srli_epi16::<2>(stored), mask);
            out[2] = _mm256_and_si256(_mm256_srli_epi16::<4>(stored), mask);
            out[3] = _mm256_and_si256(_mm256_srli_epi16::<6>(stored), mask);
            out[4] = _mm256_and_si256(_mm256_srli_epi16::<8>(stored), mask);
            out[5] = _mm256_and_si256(_mm256_srli_epi16::<10>(stored), mask);
            out[6] = _mm256_and_si256(_mm256_srli_epi16::<12>(stored), mask);
            out[7] = _mm256_srli_epi16::<14>(stored);
        }
        4 => {
            let mask = _mm256_set1_epi16(15);
            out[0] = _mm256_and_si256(stored, mask);
            out[1] = _mm256_and_si256(_mm256_srli_epi16::<4>(stored), mask);
            out[2] = _mm256_and_si256(_mm256_srli_epi16::<8>(stored), mask);
            out[3] = _mm256_srli_epi16::<12>(stored);
        }
        _ => {
            out[0] = _mm256_and_si256(stored, low);
            out[1] = _mm256_srli_epi16::<8>(stored);
        }
    }
    out
}

/// `y[i] = W[first + i] x[t]`; for `next` see [`rows`](super::rows).
pub(super) fn rows(w: &Codes<'_>, first: usize, x: &Rounded, t: usize, y: &mut [f32], next: &[u8]) {
    assert!(first + y.len() <= w.rows && x.cols == w.cols && t < x.tokens() && x.form == Form::of(w, false));
    assert!(w.groups() <= MAX_GROUPS);
    // SAFETY: called for the set `Avx2` alone. `Codes` has checked its slices; rows, token and form are checked above.
    unsafe { by_form!(w.packing, w.group, rows_of(w, first, x, t, y, next)) }
}

/// # Safety
/// The rows, the token and the form fit, and a row has at most [`MAX_GROUPS`], on a machine with these instructions.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows_of<const PACKING: usize, const GROUP: usize>(
    w: &Codes<'_>,
    first: usize,
    x: &Rounded,
    t: usize,
    y: &mut [f32],
    next: &[u8],
) {
    let codes = w.codes.as_ptr();
    let end = codes.wrapping_add((first + y.len()) * w.row_bytes());
    let mut stream = Stream {
        ahead: codes.wrapping_add(first * w.row_bytes() + AHEAD),
        end,
        jump: if next.is_empty() { 0 } else { (next.as_ptr() as usize).wrapping_sub(end as usize) },
    };
    let mut scales = [[MaybeUninit::uninit(); _]; TOGETHER];
    let (several, rest) = y.as_chunks_mut::<TOGETHER>();
    for (i, y) in several.iter_mut().enumerate() {
        let row = first + TOGETHER * i;
        // SAFETY: as for this function.
        *y = unsafe { some_rows::<PACKING, GROUP, TOGETHER>(w, row, x, t, &mut scales, &mut stream) };
    }
    let [scales, ..] = &mut scales;
    for (i, y) in rest.iter_mut().enumerate() {
        let (row, scales) = (first + TOGETHER * several.len() + i, std::array::from_mut(scales));
        // SAFETY: as for this function.
        [*y] = unsafe { some_rows::<PACKING, GROUP, 1>(w, row, x, t, scales, &mut stream) };
    }
}

/// Where codes are asked for in advance: up to `end`, then `jump` further on.
struct Stream {
    ahead: *const u8,
    end: *const u8,
    jump: usize,
}

/// Products of `ROWS` neighbouring rows with one token.
///
/// # Safety
/// As for `rows_of`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn some_rows<const PACKING: usize, const GROUP: usize, const ROWS: usize>(
    w: &Codes<'_>,
    first: usize,
    x: &Rounded,
    t: usize,
    scales: &mut Scales<ROWS>,
    stream: &mut Stream,
) -> [f32; ROWS] {
    let row_bytes = w.row_bytes();
    // SAFETY: all reads of codes are inside rows `first..first + ROWS`, the last ones of a row by way of a copy; activations and
    // sums are padded to what is read; of the scales, what is read and not written is not used; prefetches may point anywhere.
    unsafe {
        let sums = x.sums.as_ptr().add(t * x.sum_stride());
        let biased = scales::unpack::<PACKING, ROWS>(w, first, sums, scales);

        let codes = w.codes.as_ptr().add(first * row_bytes);
        let mut walk = Walk {
            activations: x.data.as_ptr().add(t * x.stride),
            scales: scales.each_ref().map(|scales| scales.as_ptr().cast()),
            pick: Pick::new::<PACKING>(),
            group_of: group_of(elements(PACKING), w.group),
            total: [_mm256_setzero_ps(); ROWS],
        };
        let step_bytes = Step::<PACKING, GROUP>::BYTES;
        let whole = row_bytes / step_bytes;
        // Steps until what is asked for in advance is elsewhere.
        let before = (stream.end as usize).saturating_sub(stream.ahead as usize).div_ceil(ROWS * step_bytes);
        let before = before.min(whole);
        for (steps, jump) in [(0..before, 0), (before..whole, stream.jump)] {
            let ahead = stream.ahead.wrapping_add(jump);
            for i in steps {
                for line in 0..(ROWS * step_bytes).div_ceil(64) {
                    let place = ahead.wrapping_add(i * ROWS * step_bytes + 64 * line);
                    _mm_prefetch::<_MM_HINT_T0>(place.cast());
                }
                walk.step::<PACKING, GROUP>(codes.add(i * step_bytes), row_bytes);
            }
        }
        stream.ahead = stream.ahead.wrapping_add(ROWS * row_bytes);
        // Only where a register holds several groups.
        let rest = row_bytes - whole * step_bytes;
        if rest > 0 {
            let mut copy = [[0; 32]; ROWS];
            for (row, copy) in copy.iter_mut().enumerate() {
                let from = codes.add(row * row_bytes + whole * step_bytes);
                from.copy_to_nonoverlapping(copy.as_mut_ptr(), rest);
            }
            walk.step::<PACKING, GROUP>(copy.as_ptr().cast(), 32);
        }

        let mut y = [0.0; ROWS];
        for row in 0..ROWS {
            let mut total = walk.total[row];
            if is_stream(PACKING) {
                let mut units = [0.0; 8];
                for (lane, unit) in units.iter_mut().enumerate() {
                    *unit = 1.0 / (1 << (lane * PACKING % 8)) as f32;
                }
                total = _mm256_mul_ps(total, _mm256_loadu_ps(units.as_ptr()));
            }
            y[row] = x.scales[t] * sum_lanes(_mm256_add_ps(total, biased[row]));
        }
        y
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_lanes(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
}

/// The group of each lane of the sums of a register with so many elements. Those of a lane lie side by side. `group` must not
/// be a constant: of one that it knows the compiler makes two shuffles.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn group_of(elements: usize, group: usize) -> __m256i {
    let lane = elements as i32 / 8;
    let first = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(lane));
    _mm256_srlv_epi32(first, _mm256_set1_epi32(group.trailing_zeros() as i32))
}

/// What is taken of a row at a time: a group, or a register where that is more.
struct Step<const PACKING: usize, const GROUP: usize>;

impl<const PACKING: usize, const GROUP: usize> Step<PACKING, GROUP> {
    const REGISTERS: usize = if GROUP > elements(PACKING) { GROUP / elements(PACKING) } else { 1 };
    const GROUPS: usize = Self::REGISTERS * elements(PACKING) / GROUP;
    const BYTES: usize = Self::REGISTERS * register_bytes(PACKING);
}

/// A walk along `ROWS` rows.
struct Walk<const ROWS: usize> {
    activations: *const i8,
    /// Those of the next groups, for each row.
    scales: [*const f32; ROWS],
    pick: Pick,
    /// The group of each lane of a sum, where a step has several.
    group_of: __m256i,
    total: [__m256; ROWS],
}

impl<const ROWS: usize> Walk<ROWS> {
    /// Takes the next step of each row, rows `row_bytes` apart.
    ///
    /// # Safety
    /// The codes of all rows, the activations and four scales of each row can be read, on a machine with these instructions.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn step<const PACKING: usize, const GROUP: usize>(&mut self, codes: *const u8, row_bytes: usize) {
        let (registers, groups) = (Step::<PACKING, GROUP>::REGISTERS, Step::<PACKING, GROUP>::GROUPS);
        // SAFETY: as for this function.
        unsafe {
            for row in 0..ROWS {
                let mut sum = _mm256_setzero_si256();
                for register in 0..registers {
                    let place = codes.add(row * row_bytes + register * register_bytes(PACKING));
                    let split = split::<PACKING>(place, &self.pick);
                    let mut numbers = [_mm256_setzero_si256(); 8];
                    for (p, numbers) in numbers.iter_mut().enumerate().take(planes(PACKING)) {
                        let place = self.activations.add(32 * (register * planes(PACKING) + p));
                        *numbers = _mm256_loadu_si256(place.cast());
                    }
                    for p in 0..planes(PACKING) {
                        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(split[p], numbers[p]));
                    }
                }
                let scales = self.scales[row];
                let scale = if groups == 1 {
                    _mm256_set1_ps(*scales)
                } else {
                    let four = _mm_loadu_ps(scales);
                    _mm256_permutevar_ps(_mm256_set_m128(four, four), self.group_of)
                };
                self.total[row] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, self.total[row]);
                self.scales[row] = scales.wrapping_add(groups);
            }
            self.activations = self.activations.wrapping_add(32 * registers * planes(PACKING));
        }
    }
}
