//! Activations as integer kernels see them.
//!
//! A token's activations become whole numbers of at most 15 bits with one scale: `x = scale * i`, `|i| <= 127 * 128`.
//! Whatever the values, the error of a product with them is at most `sqrt(cols) / 56,000` of the product of the norms,
//! 0.1% for 2048 columns; eight bits per group of 64 would allow 2%. Decoding waits for the weights anyway, so the extra
//! bits cost nothing there.
//!
//! Each instruction set wants the numbers in an order of its own, so that codes need not be moved in every row: `arrange`
//! in the set's file knows it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::codes::{Codes, Packing};
use super::{Set, scalar};
use crate::arena::{Arena, Buffer};
use crate::vector::{LANES, vectorised};

/// Largest whole number.
const LARGEST: f32 = 127.0 * 128.0;

/// What an arrangement depends on: matrices that agree in these can share rounded activations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Form {
    pub packing: Packing,
    pub group: usize,
    /// For products of many tokens, or of few.
    pub panel: bool,
}

impl Form {
    pub fn of(codes: &Codes<'_>, panel: bool) -> Self {
        Form { packing: codes.packing, group: codes.group, panel }
    }

    /// Columns that arrangements are padded to with zeros: the most that a kernel takes at a time.
    pub fn padding(self) -> usize {
        if self.panel { 64 } else { 256 }
    }
}

/// A buffer of bytes.
pub(crate) struct Bytes(Buffer);

impl Deref for Bytes {
    type Target = [i8];

    fn deref(&self) -> &[i8] {
        // SAFETY: a float is four bytes.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), size_of_val(&*self.0)) }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [i8] {
        // SAFETY: a float is four bytes, and any four bytes are a float.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), size_of_val(&*self.0)) }
    }
}

/// Rounded activations of `n` tokens.
pub(crate) struct Rounded {
    pub form: Form,
    pub cols: usize,
    /// Bytes of a token in `data`.
    pub stride: usize,
    /// Arranged numbers, padded with zeros to what the kernels read.
    pub data: Bytes,
    /// One per token.
    pub scales: Vec<f32>,
    /// The sum of the whole numbers of each group, `[token][groups + padding]`.
    pub sums: Vec<f32>,
}

/// Sums are read 16 at a time.
const SUM_PADDING: usize = LANES;

impl Rounded {
    /// Room for `n` tokens of `cols` values, which [`Part::fill`] writes, the padding too.
    pub fn new(arena: &Arc<Arena>, form: Form, cols: usize, n: usize) -> Self {
        let stride = 2 * cols.next_multiple_of(form.padding());
        let sums = n * Self::sum_stride_of(form, cols);
        Self {
            form,
            cols,
            stride,
            data: Bytes(arena.take(n * stride / size_of::<f32>())),
            scales: vec![0.0; n],
            sums: vec![0.0; sums],
        }
    }

    pub fn tokens(&self) -> usize {
        self.scales.len()
    }

    fn sum_stride_of(form: Form, cols: usize) -> usize {
        (cols / form.group).next_multiple_of(SUM_PADDING)
    }

    /// Sums of one token.
    pub fn sum_stride(&self) -> usize {
        Self::sum_stride_of(self.form, self.cols)
    }

    /// So many tokens at a time, as parts that threads can fill by themselves.
    pub fn parts(&mut self, tokens: usize) -> impl Iterator<Item = Part<'_>> {
        let (form, cols, stride, sum_stride) = (self.form, self.cols, self.stride, self.sum_stride());
        let data = self.data.chunks_mut(tokens * stride);
        let sums = self.sums.chunks_mut(tokens * sum_stride);
        let parts = data.zip(sums).zip(self.scales.chunks_mut(tokens));
        parts.map(move |((data, sums), scales)| Part { form, cols, stride, sum_stride, data, sums, scales })
    }
}

/// Where rounded activations of some tokens go.
pub(crate) struct Part<'a> {
    form: Form,
    cols: usize,
    stride: usize,
    sum_stride: usize,
    data: &'a mut [i8],
    sums: &'a mut [f32],
    scales: &'a mut [f32],
}

impl Part<'_> {
    /// Rounds `x`, the activations of these tokens.
    pub fn fill(self, set: Set, x: &[f32]) {
        let mut numbers = vec![0; self.cols.next_multiple_of(self.form.padding())];
        let data = self.data.chunks_exact_mut(self.stride);
        let sums = self.sums.chunks_exact_mut(self.sum_stride);
        let tokens = x.chunks_exact(self.cols).zip(data).zip(sums).zip(self.scales);
        for (((x, data), sums), scale) in tokens {
            // Beyond them there are zeros.
            let own = &mut numbers[..self.cols];
            *scale = round(set, x, own);
            group_sums(set, own, self.form.group, sums);
            match set {
                #[cfg(target_arch = "x86_64")]
                Set::Avx512 => super::avx512::arrange(self.form, &numbers, data),
                #[cfg(target_arch = "x86_64")]
                Set::Avx2 => super::avx2::arrange(self.form, &numbers, data),
                #[cfg(target_arch = "aarch64")]
                Set::Neon => super::neon::arrange(self.form, &numbers, data),
                Set::Scalar => scalar::arrange(&numbers, data),
            }
        }
    }
}

vectorised! {
    /// Rounds to whole numbers and returns what they have to be multiplied with.
    fn round<A>(x: &[f32], numbers: &mut [i16]) -> f32 {
        let mut largest = [0.0f32; LANES];
        let (blocks, rest) = x.as_chunks::<LANES>();
        for block in blocks {
            for i in 0..LANES {
                largest[i] = larger(largest[i], block[i].abs());
            }
        }
        for (i, x) in rest.iter().enumerate() {
            largest[i] = larger(largest[i], x.abs());
        }
        let largest = largest.into_iter().fold(0.0f32, larger);
        let scale = largest / LARGEST;
        // Values so small that the inverse overflows are rounded as if they were the smallest that do not.
        let inverse = if largest > 0.0 { (LARGEST / largest).min(f32::MAX) } else { 0.0 };
        for (number, x) in numbers.iter_mut().zip(x) {
            *number = nearest(x * inverse);
        }
        scale
    }
}

/// The larger one; a NaN is larger than anything, because it must reach the result.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}

/// The nearest whole number, for values within 16 bits. (`f32::round_ties_even` is a call without SSE4.1.)
#[inline(always)]
fn nearest(x: f32) -> i16 {
    const ROUND: f32 = 12_582_912.0;
    // The whole number sits in the low bits of the sum.
    (x + ROUND).to_bits() as i16
}

vectorised! {
    fn group_sums<A>(numbers: &[i16], group: usize, sums: &mut [f32]) {
        for (sum, numbers) in sums.iter_mut().zip(numbers.chunks_exact(group)) {
            let mut lanes = [0i32; LANES];
            for block in numbers.as_chunks::<LANES>().0 {
                for i in 0..LANES {
                    lanes[i] += i32::from(block[i]);
                }
            }
            *sum = lanes.iter().sum::<i32>() as f32;
        }
    }
}
