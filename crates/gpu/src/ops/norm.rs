//! Norms: a workgroup per row.

use ::backend::{Handle, Result, Shape};

use super::{folded, word};
use crate::kernels::norm::{
    LongRowThreads, RowThreads, combine_norm, combine_norm_add, gated_norm, norm_add, rms_norm,
};
use crate::{Gpu, Tensor};

impl Gpu {
    fn row_threads(&self, width: usize, count: usize) -> RowThreads {
        RowThreads::choose(&self.device.profile, width, count)
    }

    /// Over every slice of `width` channels.
    pub(crate) fn rms_norm_of(
        &self,
        x: &Tensor,
        weight: Option<&Tensor>,
        width: usize,
        eps: f32,
    ) -> Result<Tensor> {
        let Shape { rows, cols } = x.shape();
        let y = self.tensor(rows, cols)?;
        let slices = (rows * cols).checked_div(width).unwrap_or(0);
        let has_weight = weight.is_some().into();
        let params = rms_norm::Params { width: word(width), rows: word(slices), eps, has_weight };
        let bindings =
            rms_norm::Bindings { x: x.buffer(), weight: weight.map(Tensor::buffer), y: y.buffer() };
        self.run(rms_norm::call(self.row_threads(width, slices), params, bindings), folded(slices));
        Ok(y)
    }

    pub(crate) fn norm_add_of(
        &self,
        [residual, x, weight]: [&Tensor; 3],
        eps: f32,
        factor: f32,
    ) -> Result<Tensor> {
        let Shape { rows, cols } = x.shape();
        let y = self.tensor(rows, cols)?;
        let params = norm_add::Params { width: word(cols), rows: word(rows), eps, factor };
        let [residual, x, weight] = [residual, x, weight].map(Tensor::buffer);
        let bindings = norm_add::Bindings { residual, x, weight, y: y.buffer() };
        self.run(norm_add::call(self.row_threads(cols, rows), params, bindings), folded(rows));
        Ok(y)
    }

    /// Over every head's slice of `width` channels.
    pub(crate) fn gated_norm_of(
        &self,
        [v, z, weight]: [&Tensor; 3],
        width: usize,
        eps: f32,
    ) -> Result<Tensor> {
        let Shape { rows, cols } = v.shape();
        let y = self.tensor(rows, cols)?;
        let slices = rows * cols / width;
        let params = gated_norm::Params { width: word(width), rows: word(slices), eps };
        let [v, z, weight] = [v, z, weight].map(Tensor::buffer);
        let bindings = gated_norm::Bindings { v, z, weight, y: y.buffer() };
        self.run(gated_norm::call(self.row_threads(width, slices), params, bindings), folded(slices));
        Ok(y)
    }

    pub(crate) fn combine_norm_of(
        &self,
        [a, a_weight, b, b_weight]: [&Tensor; 4],
        eps: f32,
    ) -> Result<Tensor> {
        let Shape { rows, cols } = a.shape();
        let y = self.tensor(rows, cols)?;
        let params = combine_norm::Params { width: word(cols), rows: word(rows), eps };
        let [a, a_weight, b, b_weight] = [a, a_weight, b, b_weight].map(Tensor::buffer);
        let bindings = combine_norm::Bindings { a, a_weight, b, b_weight, y: y.buffer() };
        self.run(combine_norm::call(self.row_threads(cols, rows), params, bindings), folded(rows));
        Ok(y)
    }

    pub(crate) fn combine_norm_add_of(
        &self,
        [residual, a, b]: [&Tensor; 3],
        [a_weight, b_weight, weight]: [&Tensor; 3],
        eps: f32,
        factor: f32,
    ) -> Result<Tensor> {
        let Shape { rows, cols } = a.shape();
        let y = self.tensor(rows, cols)?;
        let consts = LongRowThreads::choose(&self.device.profile, cols, rows);
        let params = combine_norm_add::Params { width: word(cols), rows: word(rows), eps, factor };
        let [residual, a, b] = [residual, a, b].map(Tensor::buffer);
        let [a_weight, b_weight, weight] = [a_weight, b_weight, weight].map(Tensor::buffer);
        let bindings =
            combine_norm_add::Bindings { residual, a, b, a_weight, b_weight, weight, y: y.buffer() };
        self.run(combine_norm_add::call(consts, params, bindings), folded(rows));
        Ok(y)
    }
}
