//! Norms: a workgroup per row.

use ::backend::{Factor, Handle, Result, Shape};

use super::folded;
use crate::pool::Buffer;
use crate::shader::{Kernel, Variant, kernels};
use crate::{Gpu, Tensor};

/// Slices that do not keep a large device busy.
const FEW: usize = 16;

/// What kernels call a factor: its kind, its value; and the buffer with one per channel, else one that stands in for it.
fn factor_numbers<'a>(factor: &Factor<'a, Tensor>, other: &'a Tensor) -> (u32, u32, &'a Buffer) {
    match factor {
        Factor::One => (0, 0, other.buffer()),
        Factor::Scalar(value) => (1, value.to_bits(), other.buffer()),
        Factor::Channels(values) => (2, 0, values.buffer()),
    }
}

/// Values that a thread keeps from the sum of squares to the norm (`HELD` in pieces/rms.wgsl).
const HELD: usize = 4;

impl Gpu {
    /// A kernel with threads that suit slices of `width` values, one per workgroup: a few long ones must come quickly, of many, many are at
    /// work at once.
    pub(crate) fn by_row(&self, kernel: &'static Kernel, width: usize, count: usize) -> Variant {
        let threads = match width {
            ..=256 => 64,
            1025.. if count <= FEW && self.device.most_threads >= 1024 => 1024,
            _ => 256,
        };
        Variant::new(kernel, threads)
    }

    /// Over every slice of `width` channels.
    pub(crate) fn rms_norm_of(
        &self,
        x: &Tensor,
        w: Option<&Tensor>,
        width: usize,
        eps: f32,
    ) -> Result<Tensor> {
        let Shape { rows, cols } = x.shape();
        let y = self.tensor(rows, cols)?;
        let slices = (rows * cols).checked_div(width).unwrap_or(0);
        let buffers = [x.buffer(), w.unwrap_or(x).buffer(), y.buffer()];
        let numbers = [width as u32, slices as u32, eps.to_bits(), u32::from(w.is_some())];
        self.run(&self.by_row(&kernels::RMS_NORM, width, slices), &buffers, &numbers, folded(slices));
        Ok(y)
    }

    pub(crate) fn add_norm_of(
        &self,
        [r, x, w]: [&Tensor; 3],
        eps: f32,
        factor: &Factor<'_, Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let Shape { rows, cols } = x.shape();
        let (s, y) = (self.tensor(rows, cols)?, self.tensor(rows, cols)?);
        let (kind, value, factors) = factor_numbers(factor, w);
        let buffers = [r.buffer(), x.buffer(), w.buffer(), factors, s.buffer(), y.buffer()];
        let numbers = [cols as u32, rows as u32, eps.to_bits(), kind, value];
        self.run(&self.by_row(&kernels::ADD_NORM, cols, rows), &buffers, &numbers, folded(rows));
        Ok((s, y))
    }

    pub(crate) fn norm_add_of(
        &self,
        [r, x, w]: [&Tensor; 3],
        eps: f32,
        factor: &Factor<'_, Tensor>,
    ) -> Result<Tensor> {
        let Shape { rows, cols } = x.shape();
        let y = self.tensor(rows, cols)?;
        let (kind, value, factors) = factor_numbers(factor, w);
        let buffers = [r.buffer(), x.buffer(), w.buffer(), factors, y.buffer()];
        let numbers = [cols as u32, rows as u32, eps.to_bits(), kind, value];
        self.run(&self.by_row(&kernels::NORM_ADD, cols, rows), &buffers, &numbers, folded(rows));
        Ok(y)
    }

    /// Over every head's slice of `width` channels.
    pub(crate) fn gated_norm_of(&self, [v, z, w]: [&Tensor; 3], width: usize, eps: f32) -> Result<Tensor> {
        let Shape { rows, cols } = v.shape();
        let y = self.tensor(rows, cols)?;
        let slices = rows * cols / width;
        let buffers = [v.buffer(), z.buffer(), w.buffer(), y.buffer()];
        let numbers = [width as u32, slices as u32, eps.to_bits()];
        self.run(&self.by_row(&kernels::GATED_NORM, width, slices), &buffers, &numbers, folded(slices));
        Ok(y)
    }

    pub(crate) fn combine_norm_of(&self, [a, wa, b, wb]: [&Tensor; 4], eps: f32) -> Result<Tensor> {
        let Shape { rows, cols } = a.shape();
        let y = self.tensor(rows, cols)?;
        let buffers = [a.buffer(), wa.buffer(), b.buffer(), wb.buffer(), y.buffer()];
        let numbers = [cols as u32, rows as u32, eps.to_bits()];
        self.run(&self.by_row(&kernels::COMBINE_NORM, cols, rows), &buffers, &numbers, folded(rows));
        Ok(y)
    }

    pub(crate) fn combine_norm_add_of(
        &self,
        [r, a, b]: [&Tensor; 3],
        [wa, wb, w]: [&Tensor; 3],
        eps: f32,
        factor: f32,
    ) -> Result<Tensor> {
        let Shape { rows, cols } = a.shape();
        let y = self.tensor(rows, cols)?;
        let buffers = [r, a, b, wa, wb, w, &y].map(Tensor::buffer);
        let numbers = [cols as u32, rows as u32, eps.to_bits(), factor.to_bits()];
        let variant = self.by_row(&kernels::COMBINE_NORM_ADD, cols, rows);
        let long = cols > HELD * variant.threads as usize;
        self.run(&variant.with("LONG", u32::from(long)), &buffers, &numbers, folded(rows));
        Ok(y)
    }
}
