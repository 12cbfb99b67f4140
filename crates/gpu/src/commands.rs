//! Commands in the making.

use crate::chain::{Chain, Link};
use crate::device::Device;
use crate::pipelines::Pipeline;
use crate::pool::Buffer;
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
