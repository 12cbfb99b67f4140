//! Recurrent states of one layer of one sequence.

use ::backend::{GdnShape, Handle, RecurrentImage, Result};

use crate::Gpu;
use crate::pool::Buffer;
use crate::recorder::Copy;

/// Convolution window and recurrent matrices of a Gated DeltaNet layer, on the device.
pub struct Recurrent {
    pub(crate) shape: GdnShape,
    /// `[kernel - 1][channels]`, oldest first.
    pub(crate) window: Buffer,
    /// Where a step that others read the window in leaves the next one; the two then change places.
    pub(crate) next_window: Buffer,
    /// `S[value_head][dv][dk]`
    pub(crate) matrices: Buffer,
}

impl Gpu {
    fn blank(&self, shape: &GdnShape) -> Result<Recurrent> {
        Ok(Recurrent {
            shape: *shape,
            window: self.pool.fresh("a recurrent state", 4 * shape.window_len() as u64)?,
            next_window: self.pool.fresh("a recurrent state", 4 * shape.window_len() as u64)?,
            matrices: self.pool.fresh("a recurrent state", 4 * shape.state_len() as u64)?,
        })
    }

    pub(crate) fn zero_state(&self, shape: &GdnShape) -> Result<Recurrent> {
        let state = self.blank(shape)?;
        self.recorder.clear(&state.window);
        self.recorder.clear(&state.matrices);
        Ok(state)
    }

    pub(crate) fn copy_state(&self, state: &Recurrent) -> Result<Recurrent> {
        let copy = self.blank(&state.shape)?;
        let whole = |len: usize| [Copy { from: 0, to: 0, len: 4 * len as u64 }];
        self.recorder.copy(&state.window, &copy.window, &whole(state.shape.window_len()));
        self.recorder.copy(&state.matrices, &copy.matrices, &whole(state.shape.state_len()));
        Ok(copy)
    }

    pub(crate) fn state_image(&self, state: &Recurrent) -> Result<RecurrentImage> {
        let [window, matrices] = self.recorder.read([
            (&state.window, 4 * state.shape.window_len() as u64),
            (&state.matrices, 4 * state.shape.state_len() as u64),
        ])?;
        Ok(RecurrentImage { window: floats(&window), state: floats(&matrices) })
    }

    pub(crate) fn state_of(&self, shape: &GdnShape, image: &RecurrentImage) -> Result<Recurrent> {
        let state = self.blank(shape)?;
        self.recorder.write(&state.window, bytemuck::cast_slice(&image.window));
        self.recorder.write(&state.matrices, bytemuck::cast_slice(&image.state));
        Ok(state)
    }
}

/// Bytes from the device as whole numbers.
pub(crate) fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|b| u32::from_ne_bytes(*b)).collect()
}

/// Bytes that came back from the device as floats.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect()
}

impl Handle for Recurrent {
    type Shape = GdnShape;

    fn shape(&self) -> GdnShape {
        self.shape
    }
}
