//! Products of many tokens: rows are unpacked once and turned, so that a lane is a row, and then meet every token.

use std::arch::x86_64::*;

use super::{Unpack, load_scales, low_bits, planes, register_bytes, split, widen_bf16};
use crate::kernels::PANEL;
use crate::kernels::codes::{Codes, Packing, ScaleType};
use crate::kernels::forms::is_stream;
use crate::kernels::rounded::{Form, Rounded};

/// Tokens that meet a panel together.
const TOKENS: usize = 4;

/// How far ahead of their use codes of a row are asked for.
const AHEAD: usize = 512;

/// Turns 16 registers of 16 dwords: dword `j` of register `i` becomes dword `i` of register `j`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn transpose(r: [__m512i; 16]) -> [__m512i; 16] {
    let mut t = r;
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    let mut u = t;
    for i in 0..4 {
        for j in 0..2 {
            u[4 * i + 2 * j] = _mm512_unpacklo_epi64(t[4 * i + j], t[4 * i + 2 + j]);
            u[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(t[4 * i + j], t[4 * i + 2 + j]);
        }
    }
    // u[4 i + j] holds columns j, 4 + j, 8 + j, 12 + j of rows 4 i .. 4 i + 4, a lane of 128 bits each.
    let mut out = u;
    for j in 0..4 {
        let a = _mm512_shuffle_i32x4::<0x88>(u[j], u[4 + j]);
        let b = _mm512_shuffle_i32x4::<0x88>(u[8 + j], u[12 + j]);
        let c = _mm512_shuffle_i32x4::<0xdd>(u[j], u[4 + j]);
        let d = _mm512_shuffle_i32x4::<0xdd>(u[8 + j], u[12 + j]);
        out[j] = _mm512_shuffle_i32x4::<0x88>(a, b);
        out[8 + j] = _mm512_shuffle_i32x4::<0xdd>(a, b);
        out[4 + j] = _mm512_shuffle_i32x4::<0x88>(c, d);
        out[12 + j] = _mm512_shuffle_i32x4::<0xdd>(c, d);
    }
    out
}

/// Rows of a matrix, unpacked and turned.
#[derive(Default)]
pub(in crate::kernels) struct Panel {
    /// `[dword of elements][PANEL rows][4 elements]`
    codes: Vec<u8>,
    /// `[group][PANEL rows]`
    scales: Vec<f32>,
    biases: Vec<f32>,
}

impl Panel {
    /// Unpacks rows `first..first + PANEL`, as far as there are.
    pub fn fill(&mut self, w: &Codes<'_>, first: usize) {
        assert!(first < w.rows);
        self.codes.resize(w.cols.next_multiple_of(256) * PANEL, 0);
        let scales = w.groups().next_multiple_of(16) * PANEL;
        self.scales.resize(scales, 0.0);
        self.biases.resize(scales, 0.0);
        // SAFETY: called for the set `Avx512` alone; `Codes` has checked its slices, and there is room.
        unsafe { super::by_packing!(w.packing, unpack_panel(w, first, self)) }
    }
}

/// # Safety
/// `first` is a row of `w`, and the panel has room, on a machine with these instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn unpack_panel<const PACKING: usize>(w: &Codes<'_>, first: usize, panel: &mut Panel) {
    let (row_bytes, groups) = (w.row_bytes(), w.groups());
    let elements = 64 * planes(PACKING);
    let unpack = Unpack::new(if is_stream(PACKING) { PACKING } else { 8 });
    let (codes, scales, biases) =
        (panel.codes.as_mut_ptr(), panel.scales.as_mut_ptr(), panel.biases.as_mut_ptr());
    for half in 0..PANEL / 16 {
        // Rows past the last are the last again; nobody looks at their results.
        let row_at = |i: usize| (first + 16 * half + i).min(w.rows - 1);
        for i in 0..w.cols.div_ceil(elements) {
            let from = i * register_bytes(PACKING);
            let mask = low_bits((row_bytes - from).min(register_bytes(PACKING)));
            // SAFETY: reads end with the row, by the mask; a register of codes fills `elements / 4` dwords of all rows, and
            // the panel is padded to whole registers.
            unsafe {
                let mut stored = [_mm512_setzero_si512(); 16];
                for (r, stored) in stored.iter_mut().enumerate() {
                    let place = w.codes.as_ptr().add(row_at(r) * row_bytes + from);
                    *stored = _mm512_maskz_loadu_epi8(mask, place.cast());
                    if is_stream(PACKING) {
                        *stored = unpack.codes(*stored);
                    }
                    _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(AHEAD).cast());
                }
                for (d, turned) in transpose(stored).into_iter().enumerate() {
                    // Already one code per byte for widths that are streams.
                    let split =
                        if is_stream(PACKING) { [turned; 4] } else { split::<PACKING>(turned, &unpack) };
                    for (p, split) in split.into_iter().enumerate().take(planes(PACKING)) {
                        let dword = i * elements / 4 + d * planes(PACKING) + p;
                        _mm512_storeu_si512(codes.add((dword * PANEL + 16 * half) * 4).cast(), split);
                    }
                }
            }
        }
        let mut g = 0;
        while g < groups {
            // SAFETY: reads end with the row's scales; 16 groups of all rows are written, and there is room for whole 16s.
            unsafe {
                let turned = turned_scales(w, w.scales, first + 16 * half, g, w.scale_factor());
                let turned_biases = if PACKING == 0 {
                    turned_scales(w, w.scales, first + 16 * half, g, w.bias_factor())
                } else {
                    turned_scales(w, w.biases, first + 16 * half, g, 1.0)
                };
                for i in 0..16 {
                    let place = (g + i) * PANEL + 16 * half;
                    _mm512_storeu_si512(scales.add(place).cast(), turned[i]);
                    _mm512_storeu_si512(biases.add(place).cast(), turned_biases[i]);
                }
            }
            g += 16;
        }
    }
}

/// Sixteen scales, from group `g` on, of sixteen rows; register `i` holds those of group `g + i`.
///
/// # Safety
/// `plane` holds the scales or the biases of `w`, on a machine with these instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn turned_scales(w: &Codes<'_>, plane: &[u8], first: usize, g: usize, factor: f32) -> [__m512i; 16] {
    let some = low_bits((w.groups() - g).min(16)) as u16;
    let mut stored = [_mm512_setzero_si512(); 16];
    for (r, stored) in stored.iter_mut().enumerate() {
        let row = (first + r).min(w.rows - 1);
        // SAFETY: inside the row's scales, by the mask.
        let scale = unsafe {
            let place = plane.as_ptr().add(row * w.scale_row_bytes() + g * w.scale_type.bytes());
            match w.scale_type {
                ScaleType::Bf16 => widen_bf16(some, place),
                _ => load_scales(w.scale_type, some, place),
            }
        };
        *stored = _mm512_castps_si512(_mm512_mul_ps(scale, _mm512_set1_ps(factor)));
    }
    transpose(stored)
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
    assert!(panel.codes.len() >= w.cols * PANEL && panel.scales.len() >= w.groups() * PANEL);
    let (fours, rest) = tokens.as_chunks::<TOKENS>();
    let (fours_out, rest_out) = out.as_chunks_mut::<TOKENS>();
    // SAFETY: called for the set `Avx512` alone; the panel is filled for as many columns and groups, tokens and form are
    // checked above.
    unsafe {
        for (tokens, out) in fours.iter().zip(fours_out) {
            some_tokens::<TOKENS>(w, panel, x, *tokens, out);
        }
        match (rest, rest_out) {
            ([a, b, c], [x_out, y_out, z_out]) => {
                let mut three = [[0.0; PANEL]; 3];
                some_tokens::<3>(w, panel, x, [*a, *b, *c], &mut three);
                [*x_out, *y_out, *z_out] = three;
            }
            ([a, b], [x_out, y_out]) => {
                let mut two = [[0.0; PANEL]; 2];
                some_tokens::<2>(w, panel, x, [*a, *b], &mut two);
                [*x_out, *y_out] = two;
            }
            ([a], [x_out]) => {
                let mut one = [[0.0; PANEL]; 1];
                some_tokens::<1>(w, panel, x, [*a], &mut one);
                [*x_out] = one;
            }
            _ => {}
        }
    }
}

/// # Safety
/// The panel is filled for the columns and groups of `w`; `x` has these tokens in the form for panels of `w`; on a machine
/// with these instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn some_tokens<const N: usize>(
    w: &Codes<'_>,
    panel: &Panel,
    x: &Rounded,
    tokens: [u32; N],
    out: &mut [[f32; PANEL]; N],
) {
    // SAFETY: dwords, groups and bytes of activations up to the last column are there.
    unsafe {
        let activations = tokens.map(|t| x.data.as_ptr().add(t as usize * x.stride));
        let sums = tokens.map(|t| x.sums.as_ptr().add(t as usize * x.sum_stride()));
        let mut totals = [[_mm512_setzero_ps(); 2]; N];
        for g in 0..w.groups() {
            let mut high = [[_mm512_setzero_si512(); 2]; N];
            let mut low = [[_mm512_setzero_si512(); 2]; N];
            // 32 elements at a time: half of a block `[64 high | 64 low]`.
            for run in g * w.group / 32..(g + 1) * w.group / 32 {
                let codes = panel.codes.as_ptr().add(run * 8 * PANEL * 4);
                let from = run / 2 * 128 + run % 2 * 32;
                for dword in 0..8 {
                    let halves =
                        [0, 1].map(|h| _mm512_loadu_si512(codes.add((dword * PANEL + 16 * h) * 4).cast()));
                    for t in 0..N {
                        let place = activations[t].add(from + 4 * dword);
                        let x = _mm512_set1_epi32(place.cast::<i32>().read_unaligned());
                        for h in 0..2 {
                            high[t][h] = _mm512_dpbusd_epi32(high[t][h], halves[h], x);
                        }
                        let x = _mm512_set1_epi32(place.add(64).cast::<i32>().read_unaligned());
                        for h in 0..2 {
                            low[t][h] = _mm512_dpbusd_epi32(low[t][h], halves[h], x);
                        }
                    }
                }
            }
            for h in 0..2 {
                let scales = _mm512_loadu_ps(panel.scales.as_ptr().add(g * PANEL + 16 * h));
                let biases = _mm512_loadu_ps(panel.biases.as_ptr().add(g * PANEL + 16 * h));
                for t in 0..N {
                    let sum = _mm512_add_epi32(_mm512_slli_epi32::<7>(high[t][h]), low[t][h]);
                    totals[t][h] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scales, totals[t][h]);
                    totals[t][h] = _mm512_fmadd_ps(biases, _mm512_set1_ps(*sums[t].add(g)), totals[t][h]);
                }
            }
        }
        for t in 0..N {
            let scale = _mm512_set1_ps(x.scales[tokens[t] as usize]);
            for (h, total) in totals[t].into_iter().enumerate() {
                _mm512_storeu_ps(out[t].as_mut_ptr().add(16 * h), _mm512_mul_ps(total, scale));
            }
        }
    }
}
