//! Adapters: which there are, which to use, what it can do; and what has gone wrong with it.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use ::backend::{Error, Result};

use crate::device_profile::{DeviceKind, DeviceLimits, DeviceProfile};
use crate::{Numerics, Options, vulkan};

/// A graphics adapter of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Its place in the list, for `--gpu`.
    pub index: usize,
    /// What its driver calls it.
    pub name: String,
    /// Vulkan, Metal or Dx12.
    pub api: String,
    /// Whether it is only a program on the CPU.
    pub software: bool,
}

impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, name, api, software } = self;
        write!(f, "{index}: {name} ({api}{})", if *software { ", software" } else { "" })
    }
}

/// Which adapter to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The best there is, but no software.
    #[default]
    Real,
    /// The best there is, software if there is nothing else.
    Any,
    /// This one of the list.
    Index(usize),
}

/// The adapters of this machine, best first.
pub fn adapters() -> Vec<Adapter> {
    found().into_iter().map(|(adapter, _)| adapter).collect()
}

fn found() -> Vec<(Adapter, wgpu::Adapter)> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    descriptor.flags = wgpu::InstanceFlags::empty();
    let instance = wgpu::Instance::new(descriptor);
    let mut all = ready(instance.enumerate_adapters(wgpu::Backends::all()));
    all.retain(|adapter| {
        adapter.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS)
    });
    all.sort_by_key(|adapter| rank(adapter.get_info().device_type));
    let describe = |(index, adapter): (usize, wgpu::Adapter)| {
        let info = adapter.get_info();
        let software = info.device_type == wgpu::DeviceType::Cpu;
        (Adapter { index, name: info.name, api: format!("{:?}", info.backend), software }, adapter)
    };
    all.into_iter().enumerate().map(describe).collect()
}

fn rank(kind: wgpu::DeviceType) -> u32 {
    match kind {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    }
}

/// What went wrong with a device.
#[derive(Default)]
struct Trouble {
    /// It is gone, which explains everything else.
    lost: Option<String>,
    /// The first fault it reported.
    fault: Option<String>,
}

/// An open adapter.
pub(crate) struct Device {
    pub adapter: Adapter,
    pub wgpu: wgpu::Device,
    pub queue: wgpu::Queue,
    pub info: wgpu::AdapterInfo,
    /// What choices of kernels depend on.
    pub profile: DeviceProfile,
    /// Whether inputs are rounded in products with quantised weights.
    pub rounds: bool,
    /// Most bytes of one binding.
    pub largest_binding: u64,
    /// Most bytes of weights in one buffer.
    pub largest_part: u64,
    /// Bytes of memory that the adapter has of its own, where that can be known.
    pub memory: Option<u64>,
    /// Bytes of all buffers.
    pub used: AtomicU64,
    /// Whether a buffer has gone that bind groups may still hold on to.
    pub stale: AtomicBool,
    trouble: Arc<Mutex<Trouble>>,
}

impl Device {
    pub fn open(options: &Options) -> Result<Self> {
        let mut all = found();
        let place = match options.adapter {
            Choice::Any => (!all.is_empty()).then_some(0),
            Choice::Real => all.iter().position(|(adapter, _)| !adapter.software),
            Choice::Index(index) => (index < all.len()).then_some(index),
        };
        let Some(place) = place else { return Err(none_suitable(options.adapter, &all)) };
        let (adapter, raw) = all.swap_remove(place);
        Self::open_adapter(adapter, &raw, options)
    }

    fn open_adapter(adapter: Adapter, raw: &wgpu::Adapter, options: &Options) -> Result<Self> {
        let wanted = wgpu::Features::SUBGROUP | wgpu::Features::PIPELINE_CACHE;
        let clock = wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES;
        let wanted = if options.profile { wanted | clock } else { wanted };
        let mut features = raw.features() & wanted;
        if options.defaults_only {
            features.remove(wgpu::Features::SUBGROUP);
        }
        let matrices = options.numerics == Numerics::Fast && !options.defaults_only && has_matrices(raw);
        if matrices {
            features |= wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX | wgpu::Features::SHADER_F16;
        }
        // SAFETY: the one experimental feature is used by kernels that keep to what its implementation has been seen to do.
        let experimental = unsafe { wgpu::ExperimentalFeatures::enabled() };
        // What the adapter allows: kernels keep to wgpu's defaults, but buffers of weights profit from all there is.
        let limits = raw.limits();
        // On Metal a kernel may get fewer than the device has, which nobody has tried.
        let metal = raw.get_info().backend == wgpu::Backend::Metal;
        // Those with more threads need more memory, too.
        let small = limits.max_compute_workgroup_storage_size < 32 << 10;
        let allowed =
            if metal || small || options.defaults_only { &wgpu::Limits::default() } else { &limits };
        let most_threads = allowed.max_compute_invocations_per_workgroup;
        let shared_memory = allowed.max_compute_workgroup_storage_size;
        let largest_binding = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size) / 16 * 16;
        let largest_part = options.largest_part.map_or(largest_binding, |most| most.min(largest_binding));
        let descriptor = wgpu::DeviceDescriptor {
            label: None,
            required_features: features,
            required_limits: limits,
            experimental_features: if matrices {
                experimental
            } else {
                wgpu::ExperimentalFeatures::disabled()
            },
            memory_hints: wgpu::MemoryHints::Performance,
            trace: wgpu::Trace::Off,
        };
        let chains = options.chains.unwrap_or_else(|| vulkan::starts_in_order(&raw.get_info()));
        let chains = chains && features.contains(wgpu::Features::SUBGROUP);
        let (wgpu, queue) = match vulkan::open_computing(raw, &descriptor, chains) {
            Some(opened) => opened,
            None => ready(raw.request_device(&descriptor))
                .map_err(|e| Error::Device(format!("cannot open {}: {e}", adapter.name)))?,
        };
        let trouble = Arc::new(Mutex::new(Trouble::default()));
        wgpu.set_device_lost_callback({
            let trouble = trouble.clone();
            move |_, why| {
                let why = or(&one_line(&why), "its driver gives no reason");
                locked(&trouble).lost.get_or_insert(format!("the GPU was lost: {why}"));
            }
        });
        wgpu.on_uncaptured_error({
            let trouble = trouble.clone();
            Arc::new(move |error: wgpu::Error| {
                locked(&trouble).fault.get_or_insert(one_line(&error.to_string()));
            })
        });
        let info = raw.get_info();
        let (subgroup, largest_subgroup) = match features.contains(wgpu::Features::SUBGROUP) {
            true => (info.subgroup_min_size, info.subgroup_max_size),
            false => (0, 1),
        };
        let kind = DeviceKind::of(&info, vulkan::starts_in_order(&info));
        let limits =
            DeviceLimits { matrices, chains, subgroup, largest_subgroup, most_threads, shared_memory };
        let profile = DeviceProfile::new(kind, limits);
        Ok(Self {
            memory: vulkan::memory(raw),
            adapter,
            wgpu,
            queue,
            info,
            profile,
            rounds: options.numerics == Numerics::Fast,
            largest_binding,
            largest_part,
            used: AtomicU64::new(0),
            stale: AtomicBool::new(false),
            trouble,
        })
    }

    /// Bytes of the adapter's own memory that this program has not taken; others may have.
    pub fn free_memory(&self) -> Option<u64> {
        Some(self.memory?.saturating_sub(self.used.load(Ordering::Relaxed)))
    }

    /// Whether kernels wait for each other by themselves.
    pub fn chains(&self) -> bool {
        self.profile.limits.chains
    }

    /// What went wrong since the device was opened, if anything did. It cannot be trusted after that.
    pub fn check(&self) -> Result<()> {
        let trouble = locked(&self.trouble);
        match trouble.lost.as_ref().or(trouble.fault.as_ref()) {
            Some(what) => Err(Error::Device(format!("{}: {what}", self.adapter.name))),
            None => Ok(()),
        }
    }

    /// A buffer, or an error that says how large it would have been.
    pub fn buffer(&self, what: &str, size: u64, usage: wgpu::BufferUsages) -> Result<wgpu::Buffer> {
        self.create_buffer(what, size, usage, false)
    }

    /// A buffer that the host writes and copies are made from, mapped.
    pub fn mapped_buffer(&self, what: &str, size: u64) -> Result<wgpu::Buffer> {
        self.create_buffer(what, size, wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC, true)
    }

    fn create_buffer(
        &self,
        what: &str,
        size: u64,
        usage: wgpu::BufferUsages,
        mapped_at_creation: bool,
    ) -> Result<wgpu::Buffer> {
        let refused = |why: String| {
            let has = self
                .memory
                .map_or(String::new(), |bytes| format!(", which has {:.1} GB", bytes as f64 / 1e9));
            Error::OutOfMemory(format!(
                "{:.1} MB for {what} were refused by {}{has}{why}",
                size as f64 / 1e6,
                self.adapter.name
            ))
        };
        let most = self.wgpu.limits().max_buffer_size;
        if size > most {
            return Err(refused(format!(": its buffers hold at most {:.1} MB", most as f64 / 1e6)));
        }
        let memory = self.wgpu.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let descriptor = wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation };
        let buffer = self.wgpu.create_buffer(&descriptor);
        match ready(memory.pop()) {
            None => {
                self.used.fetch_add(size, Ordering::Relaxed);
                Ok(buffer)
            }
            Some(_) => Err(refused(String::new())),
        }
    }
}

fn none_suitable(choice: Choice, all: &[(Adapter, wgpu::Adapter)]) -> Error {
    let list: Vec<String> = all.iter().map(|(adapter, _)| adapter.to_string()).collect();
    Error::Device(match (choice, list.is_empty()) {
        (_, true) => "no GPU was found: there is no Vulkan, Metal or DX12 driver that offers one".into(),
        (Choice::Index(index), _) => format!("there is no GPU {index}: there is {}", list.join(", ")),
        _ => format!(
            "no GPU was found, only {}; choose it by its number (--gpu {}) if you mean it",
            list.join(", "),
            all[0].0.index
        ),
    })
}

fn or(text: &str, otherwise: &str) -> String {
    if text.is_empty() { otherwise.into() } else { text.into() }
}

fn locked(trouble: &Mutex<Trouble>) -> MutexGuard<'_, Trouble> {
    // Texts that are there or not, never half of one.
    trouble.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A message of wgpu's, which likes several lines, as one.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "Caused by:");
    lines.collect::<Vec<_>>().join(": ")
}

/// Whether the adapter multiplies tiles as our kernels want it.
fn has_matrices(raw: &wgpu::Adapter) -> bool {
    let needed = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
        | wgpu::Features::SHADER_F16
        | wgpu::Features::SUBGROUP;
    let info = raw.get_info();
    let fits = |p: &wgpu::CooperativeMatrixProperties| {
        (p.m_size, p.n_size, p.k_size) == (16, 16, 16)
            && p.ab_type == wgpu::CooperativeScalarType::F16
            && p.cr_type == wgpu::CooperativeScalarType::F32
    };
    raw.features().contains(needed)
        && (info.subgroup_min_size, info.subgroup_max_size) == (32, 32)
        && raw.limits().max_compute_workgroup_storage_size >= 32 << 10
        && raw.cooperative_matrix_properties().iter().any(fits)
}

/// The result of a future that wgpu has ready at once on every native API.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use ::backend::{Error, Ops};

    use crate::{Choice, Gpu, Options};

    /// Software or not; none where the machine has no adapter at all.
    fn gpu() -> Option<Gpu> {
        let opened = Gpu::new(&Options { adapter: Choice::Any, ..Options::default() });
        opened.inspect_err(|error| testing::skipped("gpu", error)).ok()
    }

    #[test]
    fn a_lost_device_is_an_error_and_not_a_hang() {
        let Some(gpu) = gpu() else { return };
        let x = gpu.upload(1, 3, &[1.0, 2.0, 3.0]).unwrap();
        assert_eq!(gpu.read(&x).unwrap(), [1.0, 2.0, 3.0]);
        gpu.device.wgpu.destroy();
        // Recording goes on as if nothing had happened, or says so; reading says so, every time.
        let y = gpu.rms_norm(&x, None, 1e-6).unwrap_or(x);
        for _ in 0..2 {
            let error = gpu.read(&y).unwrap_err();
            assert!(matches!(error, Error::Device(_)), "{error}");
            assert!(error.to_string().contains("the GPU was lost"), "{error}");
        }
    }

    #[test]
    fn refused_memory_is_an_error_with_numbers() {
        let Some(gpu) = gpu() else { return };
        let usage = wgpu::BufferUsages::STORAGE;
        let error = gpu.device.buffer("a test", 1 << 60, usage).err().unwrap().to_string();
        assert!(error.starts_with("out of memory: ") && error.contains("MB for a test"), "{error}");
        let too_long = gpu.device.largest_binding + 1;
        for error in [gpu.pool.fresh("a test", too_long).err(), gpu.pool.take(too_long).err()] {
            let error = error.unwrap().to_string();
            assert!(error.contains("MB at once: "), "{error}");
        }
        // Nothing is broken by that.
        let x = gpu.upload(1, 1, &[1.0]).unwrap();
        assert_eq!(gpu.read(&x).unwrap(), [1.0]);
    }

    #[test]
    fn a_gpu_that_is_not_there_is_an_error_that_says_which_are() {
        let options = Options { adapter: Choice::Index(99), ..Options::default() };
        let error = Gpu::new(&options).err().unwrap().to_string();
        assert!(error.contains("no GPU"), "{error}");
    }
}
