//! The GPU backend: every operation as a WGSL kernel on wgpu, the same for Metal, Vulkan and DX12.
//!
//! `device` chooses an adapter and opens it, with what only `vulkan` can do, `device_profile` has what choices depend on, `kernel` declares
//! kernels, `kernels` are the declarations and choosers, `shader` assembles their text from pieces of WGSL, `pipelines` compiles them once, `pool` lends buffers, `recorder` turns operations into dispatches of few passes, `commands` holds
//! them until they are submitted, `chain` knows what they wait for, `aside` is a thread for the host's own work. `ops` has a file per group of operations, `backend` leads from the trait to them. Nothing waits but
//! `read` and the `*_save` methods.

mod aside;
mod backend;
mod chain;
mod commands;
mod device;
mod device_profile;
mod kernel;
mod kernels;
mod ops;
mod pipelines;
mod pool;
mod profile;
mod recorder;
#[cfg(test)]
mod roofline;
mod shader;
mod slabs;
mod slots;
mod tensor;
mod upload;
mod vectors;
// Where wgpu has it.
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
mod vulkan;
mod weights;

/// Where there is none.
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
mod vulkan {
    pub(crate) fn memory(_: &wgpu::Adapter) -> Option<u64> {
        None
    }

    pub(crate) fn open_computing(
        _: &wgpu::Adapter,
        _: &wgpu::DeviceDescriptor<'_>,
        _: bool,
    ) -> Option<(wgpu::Device, wgpu::Queue)> {
        None
    }

    pub(crate) fn linked<T>(_: &[crate::chain::Link], encode: impl FnOnce() -> T) -> T {
        encode()
    }

    pub(crate) fn starts_in_order(_: &wgpu::AdapterInfo) -> bool {
        false
    }
}

pub use backend::Hidden;
pub use device::{Adapter, Choice, adapters};
pub use ops::choose::Ticket;
pub use ops::rope::{Positions, Rope};
pub use ops::route::Routes;
pub use slabs::Slabs;
pub use slots::Streaming;
pub use tensor::Tensor;
pub use weights::{Experts, HeadMatrices, Linear};

use std::sync::Arc;

use ::backend::Result;

use aside::Aside;
use device::Device;
use ops::rope::Ropes;
use pipelines::Pipelines;
use pool::Pool;
use recorder::Recorder;
use slots::Stream;
use store::Store;
use upload::Uploads;
use vectors::Vectors;

/// How products are rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Numerics {
    /// A single token's inputs are rounded to 16 bits, 32 values sharing a scale, in products with weights of 4 or 8 bits. Where the GPU has
    /// matrix units, products of many tokens go through them: inputs are rounded to 11 bits, weights too.
    #[default]
    Fast,
    /// Plain f32 throughout.
    Exact,
}

/// Settings of the GPU backend.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which adapter.
    pub adapter: Choice,
    /// How products are rounded.
    pub numerics: Numerics,
    /// Most bytes of weights in one buffer, if less than the adapter allows: for tests of weights in several parts.
    pub largest_part: Option<u64>,
    /// Do without what not every adapter has (subgroup operations, matrix units, workgroups of more than 256 threads): for tests.
    pub defaults_only: bool,
    /// Whether kernels of one token's step start before those in front have finished, and wait for them by themselves. Without a word, on GPUs that have been
    /// seen to start dispatches in their order: NVIDIA's, with NVIDIA's driver.
    pub chains: Option<bool>,
    /// Whether to measure the time spent in each kernel, where the adapter can.
    pub profile: bool,
    /// For models larger than the device's memory: experts are read from disk as they are needed. When absent, all weights are
    /// copied to the device.
    pub streaming: Option<Streaming>,
}

/// A GPU. Clones are the same one.
#[derive(Clone)]
pub struct Gpu {
    device: Arc<Device>,
    pool: Arc<Pool>,
    pipelines: Arc<Pipelines>,
    recorder: Arc<Recorder>,
    uploads: Arc<Uploads>,
    aside: Arc<Aside>,
    ropes: Arc<Ropes>,
    vectors: Arc<Vectors>,
    /// Present when experts are read from disk.
    stream: Option<Arc<Stream>>,
}

impl Gpu {
    /// Opens an adapter.
    pub fn new(options: &Options) -> Result<Self> {
        let device = Arc::new(Device::open(options)?);
        let uploads = Arc::new(Uploads::new(device.clone())?);
        let pipelines = Arc::new(Pipelines::new(device.clone()));
        let recorder = Recorder::new(device.clone(), uploads.gate.clone(), &pipelines, options.profile);
        let pool = Arc::new(Pool::new(device.clone()));
        let stream = options.streaming.clone().map(Stream::new).transpose()?.map(Arc::new);
        let (recorder, aside) = (Arc::new(recorder), Arc::new(Aside::new()?));
        let (ropes, vectors) = Default::default();
        Ok(Self { device, pool, pipelines, recorder, uploads, aside, ropes, vectors, stream })
    }

    /// What experts are read with, where they are.
    pub fn store(&self) -> Option<&Store> {
        self.stream.as_ref().map(|stream| &stream.store)
    }

    /// The adapter in use.
    pub fn adapter(&self) -> &Adapter {
        &self.device.adapter
    }

    /// Whether inputs of products are rounded.
    pub fn numerics(&self) -> Numerics {
        if self.device.rounds { Numerics::Fast } else { Numerics::Exact }
    }

    /// Bytes of weights that have reached the device, and of all that were asked for.
    pub fn upload_progress(&self) -> (u64, u64) {
        self.uploads.progress()
    }

    /// Dispatches recorded since the start.
    pub fn dispatches(&self) -> u64 {
        self.recorder.dispatches()
    }
}
