//! Products of many tokens: rows are unpacked once and turned, so that a lane is a row, and then meet every token.
//!
//! Codes become pairs of words, as `vpmaddwd` takes them. A dword of a row holds `E` codes, and a shift and a mask leave two of them, code `p` in
//! its low word and code `p + E / 2` in its high one; activations have been arranged in such pairs.

use std::arch::x86_64::*;

use super::scales::load_some_scales;
use super::{planes, split_words};
use crate::kernels::PANEL;
use crate::kernels::codes::{Codes, Packing, ScaleType};
use crate::kernels::forms::is_stream;
use crate::kernels::rounded::{Form, Rounded};

/// Tokens that meet a panel together, and rows: their sums are half of all registers.
const TOKENS: usize = 4;
const ROWS: usize = 16;

/// Bytes of a row that are turned at a time.
const CHUNK: usize = 32;

/// How far ahead of their use codes of a row are asked for.
const AHEAD: usize = 512;

/// Writes whole numbers in pairs.
pub(super) fn arrange(packing: Packing, numbers: &[i16], out: &mut [i8]) {
    match packing {
        Packing::Bits(2) => arrange_pairs::<16>(numbers, out),
        Packing::Bits(4) | Packing::Fp4 => arrange_pairs::<8>(numbers, out),
        Packing::Bits(_) => arrange_pairs::<4>(numbers, out),
    }
}

fn arrange_pairs<const E: usize>(numbers: &[i16], out: &mut [i8]) {
    for (numbers, out) in numbers.as_chunks::<E>().0.iter().zip(out.chunks_exact_mut(2 * E)) {
        for (p, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let [a, b] = [numbers[p], numbers[p + E / 2]].map(|n| n.to_le_bytes().map(|byte| byte as i8));
            *out = [a[0], a[1], b[0], b[1]];
        }
    }
}

/// Rows of a matrix, unpacked and turned.
#[derive(Default)]
pub(in crate::kernels) struct Panel {
    /// `[pair of elements][PANEL rows]`
    codes: Vec<[i16; 2]>,
    /// `[group][PANEL rows]`
    scales: Vec<f32>,
    biases: Vec<f32>,
}

impl Panel {
    /// Unpacks rows `first..first + PANEL`, as far as there are.
    pub fn fill(&mut self, w: &Codes<'_>, first: usize) {
        assert!(first < w.rows);
        // A chunk of the narrowest codes has 128.
        self.codes.resize(w.cols.next_multiple_of(128) / 2 * PANEL, [0; 2]);
        let scales = w.groups().next_multiple_of(8) * PANEL;
        self.scales.resize(scales, 0.0);
        self.biases.resize(scales, 0.0);
        // SAFETY: called for the set `Avx2` alone; `Codes` has checked its slices, and there is room.
        unsafe {
            match w.packing {
                Packing::Fp4 => unpack_panel::<0>(w, first, self),
                Packing::Bits(1) => unpack_panel::<1>(w, first, self),
                Packing::Bits(2) => unpack_panel::<2>(w, first, self),
                Packing::Bits(3) => unpack_panel::<3>(w, first, self),
                Packing::Bits(4) => unpack_panel::<4>(w, first, self),
                Packing::Bits(5) => unpack_panel::<5>(w, first, self),
                Packing::Bits(6) => unpack_panel::<6>(w, first, self),
                Packing::Bits(_) => unpack_panel::<8>(w, first, self),
            }
            match w.scale_type {
                ScaleType::Bf16 => unpack_scales::<{ ScaleType::Bf16 as usize }>(w, first, self),
                ScaleType::F16 => unpack_scales::<{ ScaleType::F16 as usize }>(w, first, self),
                ScaleType::F32 => unpack_scales::<{ ScaleType::F32 as usize }>(w, first, self),
                ScaleType::E8m0 => unpack_scales::<{ ScaleType::E8m0 as usize }>(w, first, self),
            }
        }
    }
}

/// Turns 8 registers of 8 dwords: dword `j` of register `i` becomes dword `i` of register `j`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transpose(r: [__m256; 8]) -> [__m256; 8] {
    let mut t = r;
    for i in 0..4 {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    let mut u = t;
    for i in 0..2 {
        for j in 0..2 {
            let [low, high] = [t[4 * i + j], t[4 * i + 2 + j]];
            u[4 * i + 2 * j] = _mm256_shuffle_ps::<0x44>(low, high);
            u[4 * i + 2 * j + 1] = _mm256_shuffle_ps::<0xee>(low, high);
        }
    }
    // u[4 i + j] holds columns j and 4 + j of rows 4 i .. 4 i + 4, a lane of 128 bits each.
    let mut out = u;
    for j in 0..4 {
        out[j] = _mm256_permute2f128_ps::<0x20>(u[j], u[4 + j]);
        out[4 + j] = _mm256_permute2f128_ps::<0x31>(u[j], u[4 + j]);
    }
    out
}

/// The next codes of a row, which begin `bytes`, one by one in bytes if they are a stream. What is beyond the end of the matrix is zero.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn chunk<const PACKING: usize>(bytes: &[u8]) -> __m256i {
    let mut copy = [0; CHUNK];
    let place = if is_stream(PACKING) {
        for (eight, stored) in copy.as_chunks_mut::<8>().0.iter_mut().zip(bytes.chunks_exact(PACKING)) {
            let mut word = [0; 8];
            word[..PACKING].copy_from_slice(stored);
            let word = u64::from_le_bytes(word);
            for (i, code) in eight.iter_mut().enumerate() {
                *code = (word >> (i * PACKING)) as u8 & ((1u16 << PACKING) - 1) as u8;
            }
        }
        copy.as_ptr()
    } else if bytes.len() >= CHUNK {
        bytes.as_ptr()
    } else {
        copy[..bytes.len()].copy_from_slice(bytes);
        copy.as_ptr()
    };
    // SAFETY: so many bytes can be read.
    unsafe { _mm256_loadu_si256(place.cast()) }
}

/// # Safety
/// `first` is a row of `w`, and the panel has room, on a machine with these instructions.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_panel<const PACKING: usize>(w: &Codes<'_>, first: usize, panel: &mut Panel) {
    // Pairs of a dword, and stored bytes of a chunk.
    let (pairs, stored) =
        if is_stream(PACKING) { (2, PACKING * CHUNK / 8) } else { (planes(PACKING), CHUNK) };
    let row_bytes = w.row_bytes();
    for eight in 0..PANEL / 8 {
        // Rows past the last are the last again; nobody looks at their results.
        let rows: [&[u8]; 8] =
            std::array::from_fn(|r| &w.codes[(first + 8 * eight + r).min(w.rows - 1) * row_bytes..]);
        for i in 0..row_bytes.div_ceil(stored) {
            let codes = rows.map(|row| {
                let row = &row[i * stored..];
                _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().wrapping_add(AHEAD).cast());
                _mm256_castsi256_ps(chunk::<PACKING>(row))
            });
            for (d, dwords) in transpose(codes).into_iter().enumerate() {
                let dwords = _mm256_castps_si256(dwords);
                let words = if is_stream(PACKING) {
                    split_words::<8>(dwords)
                } else {
                    split_words::<PACKING>(dwords)
                };
                for (p, words) in words.into_iter().enumerate().take(pairs) {
                    let place = ((8 * i + d) * pairs + p) * PANEL + 8 * eight;
                    // SAFETY: the panel is padded to whole chunks.
                    unsafe { _mm256_storeu_si256(panel.codes.as_mut_ptr().add(place).cast(), words) }
                }
            }
        }
    }
}

/// # Safety
/// As for `unpack_panel`; `TYPE` is that of the scales of `w`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_scales<const TYPE: usize>(w: &Codes<'_>, first: usize, panel: &mut Panel) {
    let (groups, row_bytes) = (w.groups(), w.scale_row_bytes());
    let scale_factor = w.scale_factor();
    // Where there are none, a bias is a multiple of its scale.
    let (biases, bias_factor) = match w.packing {
        Packing::Fp4 => (w.scales, w.bias_factor()),
        Packing::Bits(_) => (w.biases, 1.0),
    };
    for eight in 0..PANEL / 8 {
        for g in (0..groups).step_by(8) {
            let turned = |plane: &[u8], factor: f32| {
                let factor = _mm256_set1_ps(factor);
                transpose(std::array::from_fn(|r| {
                    let row = (first + 8 * eight + r).min(w.rows - 1);
                    let stored = &plane[row * row_bytes + g * w.scale_type.bytes()..];
                    _mm256_mul_ps(load_some_scales::<TYPE>(stored, groups - g), factor)
                }))
            };
            let (scales, biases) = (turned(w.scales, scale_factor), turned(biases, bias_factor));
            for i in 0..8 {
                let place = (g + i) * PANEL + 8 * eight;
                // SAFETY: there is room for whole eights of groups.
                unsafe {
                    _mm256_storeu_ps(panel.scales.as_mut_ptr().add(place), scales[i]);
                    _mm256_storeu_ps(panel.biases.as_mut_ptr().add(place), biases[i]);
                }
            }
        }
    }
}

/// `out[i][r] = W[first + r] x[tokens[i]]` for the rows of a filled panel.
pub(in crate::kernels) fn panel(
    w: &Codes<'_>,
    panel: &Panel,
    x: &Rounded,
    tokens: &[u32],
    out: &mut [[f32; PANEL]],
) {
    assert!(x.cols == w.cols && x.form == Form::of(w, true) && tokens.len() == out.len());
    assert!(tokens.iter().all(|t| (*t as usize) < x.tokens()));
    assert!(panel.codes.len() >= w.cols / 2 * PANEL && panel.scales.len() >= w.groups() * PANEL);
    let mut done = 0;
    while done < tokens.len() {
        let (tokens, out) = (&tokens[done..], &mut out[done..]);
        // SAFETY: called for the set `Avx2` alone; the panel is filled for as many columns and groups, tokens and form are
        // checked above, and there are as many tokens and results.
        done += unsafe {
            match tokens.len() {
                TOKENS.. => some_tokens::<TOKENS>(w, panel, x, tokens, out),
                3 => some_tokens::<3>(w, panel, x, tokens, out),
                2 => some_tokens::<2>(w, panel, x, tokens, out),
                _ => some_tokens::<1>(w, panel, x, tokens, out),
            }
        };
    }
}

/// Takes the first `N` tokens and returns `N`.
///
/// # Safety
/// The panel is filled for the columns and groups of `w`; `x` has these tokens in the form for panels of `w`, and there are as many and results for
/// them; on a machine with these instructions.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn some_tokens<const N: usize>(
    w: &Codes<'_>,
    panel: &Panel,
    x: &Rounded,
    tokens: &[u32],
    out: &mut [[f32; PANEL]],
) -> usize {
    let tokens: [usize; N] = std::array::from_fn(|t| tokens[t] as usize);
    let pairs = w.group / 2;
    // SAFETY: pairs, groups and activations up to the last column are there.
    unsafe {
        let sums = tokens.map(|t| x.sums.as_ptr().add(t * x.sum_stride()));
        for from in (0..PANEL).step_by(ROWS) {
            let mut totals = [[_mm256_setzero_ps(); 2]; N];
            for g in 0..w.groups() {
                let mut products = [[_mm256_setzero_si256(); 2]; N];
                let codes = panel.codes.as_ptr().add(g * pairs * PANEL + from);
                let numbers = tokens.map(|t| x.data.as_ptr().add(t * x.stride).cast::<i32>().add(g * pairs));
                for p in 0..pairs {
                    let place = codes.add(p * PANEL);
                    let codes = [0, 8].map(|row| _mm256_loadu_si256(place.add(row).cast()));
                    for t in 0..N {
                        let number = _mm256_set1_epi32(numbers[t].add(p).read_unaligned());
                        for h in 0..2 {
                            products[t][h] =
                                _mm256_add_epi32(products[t][h], _mm256_madd_epi16(codes[h], number));
                        }
                    }
                }
                for h in 0..2 {
                    let place = g * PANEL + from + 8 * h;
                    let scales = _mm256_loadu_ps(panel.scales.as_ptr().add(place));
                    let biases = _mm256_loadu_ps(panel.biases.as_ptr().add(place));
                    for t in 0..N {
                        let product = _mm256_cvtepi32_ps(products[t][h]);
                        totals[t][h] = _mm256_fmadd_ps(product, scales, totals[t][h]);
                        totals[t][h] = _mm256_fmadd_ps(biases, _mm256_set1_ps(*sums[t].add(g)), totals[t][h]);
                    }
                }
            }
            for t in 0..N {
                let scale = _mm256_set1_ps(x.scales[tokens[t]]);
                for (h, total) in totals[t].into_iter().enumerate() {
                    let place = out[t].as_mut_ptr().add(from + 8 * h);
                    _mm256_storeu_ps(place, _mm256_mul_ps(total, scale));
                }
            }
        }
    }
    N
}
