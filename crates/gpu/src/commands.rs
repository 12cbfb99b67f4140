//! Commands in the making, and whole steps of them that are started later.

use std::sync::Arc;

use ::backend::{Error, Result};

use crate::chain::{Chain, Link};
use crate::device::Device;
use crate::pipelines::Pipeline;
use crate::pool::{Buffer, Shelf};
use crate::vulkan;

/// Dispatches of the first submission after a wait, when the device has nothing to do, and of any.
pub(crate) const FIRST_SUBMISSION: usize = 16;
pub(crate) const PER_SUBMISSION: usize = 512;

/// What goes into one submission.
#[derive(Default)]
pub(crate) struct Commands {
    /// Dropped before the encoder is finished.
    pass: Option<wgpu::ComputePass<'static>>,
    encoder: Option<wgpu::CommandEncoder>,
    /// Those that kernels take, a slot for each dispatch.
    pub numbers: Vec<u8>,
    /// Dispatches.
    pub recorded: usize,
    chain: Chain,
}

impl Commands {
    pub fn is_empty(&self) -> bool {
        self.encoder.is_none()
    }

    /// Where dispatches go.
    pub fn pass(&mut self, device: &Device) -> &mut wgpu::ComputePass<'static> {
        let Self { pass, encoder, .. } = self;
        pass.get_or_insert_with(|| {
            let encoder =
                encoder.get_or_insert_with(|| device.wgpu.create_command_encoder(&Default::default()));
            encoder.begin_compute_pass(&Default::default()).forget_lifetime()
        })
    }

    /// Where everything else goes.
    pub fn encoder(&mut self, device: &Device) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        self.encoder.get_or_insert_with(|| device.wgpu.create_command_encoder(&Default::default()))
    }

    /// Notes one more dispatch, of so many workgroups; `alone` if it is to have the device for itself.
    pub fn add(&mut self, pipeline: &Pipeline, buffers: &[&Buffer], workgroups: u32, alone: bool) {
        self.chain.add(pipeline, buffers, workgroups, alone || self.pass.is_none());
        self.recorded += 1;
    }

    /// What has been recorded; starts anew.
    pub fn finish(&mut self, device: &Device) -> Finished {
        let Self { pass, encoder, numbers, chain, .. } = std::mem::take(self);
        drop(pass);
        let encoder = encoder.unwrap_or_else(|| device.wgpu.create_command_encoder(&Default::default()));
        let links = chain.into_links();
        let commands = vulkan::linked(&links, || encoder.finish());
        Finished { numbers, links, commands }
    }
}

/// Commands of a submission, with what their kernels take.
pub(crate) struct Finished {
    pub numbers: Vec<u8>,
    pub links: Vec<Link>,
    pub commands: wgpu::CommandBuffer,
}

/// Values from the host, and what runs when they have arrived.
pub(crate) struct Segment {
    pub writes: Vec<(Buffer, Vec<u8>)>,
    pub finished: Finished,
}

/// A step that is being recorded for later.
#[derive(Default)]
pub(crate) struct Capture {
    segments: Vec<Segment>,
    writes: Vec<(Buffer, Vec<u8>)>,
    commands: Commands,
}

impl Capture {
    /// Where commands go. The first segment is short, so that the device has something to do while the others are handed over.
    pub fn commands(&mut self, device: &Device) -> &mut Commands {
        let most = if self.segments.is_empty() { FIRST_SUBMISSION } else { PER_SUBMISSION };
        if self.commands.recorded >= most {
            self.cut(device);
        }
        &mut self.commands
    }

    /// A segment's values come before its commands: what is there already belongs to the segment before.
    pub fn write(&mut self, device: &Device, buffer: &Buffer, bytes: &[u8]) {
        if !self.commands.is_empty() {
            self.cut(device);
        }
        self.writes.push((buffer.clone(), bytes.to_vec()));
    }

    fn cut(&mut self, device: &Device) {
        let finished = self.commands.finish(device);
        self.segments.push(Segment { writes: std::mem::take(&mut self.writes), finished });
    }

    pub fn finish(mut self, device: &Device) -> Vec<Segment> {
        if !self.commands.is_empty() || !self.writes.is_empty() {
            self.cut(device);
        }
        self.segments
    }
}

/// A step that waits to be started. To drop it instead does no harm to anybody but the states it would have changed.
pub struct Recorded {
    pub(crate) segments: Vec<Segment>,
    /// Where its buffers are from.
    pub(crate) shelf: Option<Arc<Shelf>>,
}

impl Recorded {
    /// Puts other values in place of those that were written to a buffer.
    pub(crate) fn replace(&mut self, buffer: &Buffer, bytes: &[u8]) -> Result<()> {
        let mut writes = self.segments.iter_mut().flat_map(|segment| &mut segment.writes);
        let Some((_, written)) = writes.find(|(to, _)| to.id() == buffer.id()) else {
            return Err(Error::Unsupported("a batch of another step than the one that was recorded".into()));
        };
        *written = bytes.to_vec();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ::backend::{Ops, Result, Run};

    use crate::{Choice, Gpu, Options, Tensor};

    /// Software or not; none where the machine has no adapter at all.
    fn gpu() -> Option<Gpu> {
        let opened = Gpu::new(&Options { adapter: Choice::Any, ..Options::default() });
        opened.inspect_err(|error| testing::skipped("gpu", error)).ok()
    }

    fn twice(gpu: &Gpu, x: &Tensor) -> Result<Tensor> {
        gpu.join_columns(x, x)
    }

    #[test]
    fn writes_keep_their_place_between_dispatches() {
        let Some(gpu) = gpu() else { return };
        let step = || -> Result<_> {
            let x = gpu.upload(1, 2, &[1.0, 2.0])?;
            let first = twice(&gpu, &x)?;
            gpu.recorder.write(x.buffer(), bytemuck::cast_slice(&[3f32, 4.0]));
            let second = twice(&gpu, &x)?;
            let rows = gpu.select_rows(&second, &[0, 0])?;
            gpu.recorder.write(second.buffer(), bytemuck::cast_slice(&[0f32; 4]));
            Ok([first, rows, second])
        };
        let (results, recorded) = gpu.record(step).unwrap();
        assert_eq!(recorded.segments.len(), 3);
        gpu.start_recorded(recorded);
        let [first, rows, second] = results.map(|x| gpu.read(&x).unwrap());
        assert_eq!(first, [1.0, 2.0, 1.0, 2.0]);
        assert_eq!(rows, [3.0, 4.0, 3.0, 4.0, 3.0, 4.0, 3.0, 4.0]);
        assert_eq!(second, [0.0; 4]);
    }

    #[test]
    fn a_long_step_starts_with_a_short_segment() {
        let Some(gpu) = gpu() else { return };
        let x = gpu.upload(1, 1, &[1.0]).unwrap();
        // Each adds one to what came before.
        let step = || (0..700).try_fold(x.clone(), |sum, _| gpu.combine(&sum, &x, ::backend::Shared::Absent));
        let (sum, recorded) = gpu.record(step).unwrap();
        assert_eq!(recorded.segments.len(), 3);
        gpu.start_recorded(recorded);
        assert_eq!(gpu.read(&sum).unwrap(), [701.0]);
    }

    #[test]
    fn what_is_recorded_meanwhile_comes_first_and_keeps_its_buffers() {
        let Some(gpu) = gpu() else { return };
        let x = gpu.upload(1, 2, &[1.0, 2.0]).unwrap();
        let (later, recorded) = gpu.record(|| twice(&gpu, &twice(&gpu, &x)?)).unwrap();
        let meanwhile = [5.0, 7.0].map(|v| gpu.upload(1, 4, &[v; 4]).unwrap());
        let moved = twice(&gpu, &x).unwrap();
        gpu.start_recorded(recorded);
        assert_eq!(gpu.read(&later).unwrap(), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
        assert_eq!(meanwhile.map(|x| gpu.read(&x).unwrap()), [[5.0; 4], [7.0; 4]]);
        assert_eq!(gpu.read(&moved).unwrap(), [1.0, 2.0, 1.0, 2.0]);
    }

    #[test]
    fn a_step_that_fails_or_is_dropped_leaves_no_trace() {
        let Some(gpu) = gpu() else { return };
        let x = gpu.upload(1, 2, &[1.0, 2.0]).unwrap();
        drop(gpu.record(|| twice(&gpu, &x)).unwrap());
        let failed = gpu.record(|| gpu.read(&twice(&gpu, &x)?)).err().unwrap().to_string();
        assert!(failed.contains("recorded for later"), "{failed}");
        assert_eq!(gpu.read(&twice(&gpu, &x).unwrap()).unwrap(), [1.0, 2.0, 1.0, 2.0]);
    }

    #[test]
    fn other_threads_are_not_recorded() {
        let Some(gpu) = gpu() else { return };
        let x = gpu.upload(1, 2, &[1.0, 2.0]).unwrap();
        let step = || {
            let here = twice(&gpu, &x)?;
            let there = std::thread::scope(|scope| scope.spawn(|| gpu.read(&twice(&gpu, &x)?)).join());
            assert_eq!(there.unwrap()?, [1.0, 2.0, 1.0, 2.0]);
            twice(&gpu, &here)
        };
        let (later, recorded) = gpu.record(step).unwrap();
        gpu.start_recorded(recorded);
        assert_eq!(gpu.read(&later).unwrap(), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    }
}
