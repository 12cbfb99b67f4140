//! Adapters: which there are, which to use, what it can do; and what has gone wrong with it.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::{fmt, ptr};

use ::backend::{Error, Result};

use crate::Options;

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

/// An open adapter.
pub(crate) struct Device {
    pub adapter: Adapter,
    pub wgpu: wgpu::Device,
    pub queue: wgpu::Queue,
    pub info: wgpu::AdapterInfo,
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
    /// The first thing that went wrong.
    trouble: Arc<Mutex<Option<String>>>,
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
        if options.no_subgroups {
            features.remove(wgpu::Features::SUBGROUP);
        }
        // What the adapter allows: kernels keep to wgpu's defaults, but buffers of weights profit from all there is.
        let limits = raw.limits();
        let largest_binding = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
        let largest_part = options.largest_part.map_or(largest_binding, |most| most.min(largest_binding));
        let descriptor = wgpu::DeviceDescriptor {
            label: None,
            required_features: features,
            required_limits: limits,
            experimental_features: wgpu::ExperimentalFeatures::disabled(),
            memory_hints: wgpu::MemoryHints::Performance,
            trace: wgpu::Trace::Off,
        };
        let (wgpu, queue) = ready(raw.request_device(&descriptor))
            .map_err(|e| Error::Device(format!("cannot open {}: {e}", adapter.name)))?;
        let trouble = Arc::new(Mutex::new(None));
        let note = {
            let trouble = trouble.clone();
            move |what: String| {
                trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
            }
        };
        wgpu.set_device_lost_callback({
            let note = note.clone();
            move |_, why| note(format!("the GPU was lost: {}", or(&why, "its driver gives no reason")))
        });
        wgpu.on_uncaptured_error(Arc::new(move |error: wgpu::Error| note(error.to_string())));
        let info = raw.get_info();
        Ok(Self {
            memory: memory(raw),
            adapter,
            wgpu,
            queue,
            info,
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

    pub fn subgroups(&self) -> bool {
        self.wgpu.features().contains(wgpu::Features::SUBGROUP)
    }

    /// What went wrong since the device was opened, if anything did. It cannot be trusted after that.
    pub fn check(&self) -> Result<()> {
        match &*self.trouble.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(what) => Err(Error::Device(format!("{}: {what}", self.adapter.name))),
            None => Ok(()),
        }
    }

    /// A buffer, or an error that says how large it would have been.
    pub fn buffer(&self, what: &str, size: u64, usage: wgpu::BufferUsages) -> Result<wgpu::Buffer> {
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
        let descriptor = wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: false };
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

fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

/// Memory of the adapter's own, where its API tells.
fn memory(raw: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: the adapter is only asked, and outlives the guard.
    let adapter = unsafe { raw.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = adapter.shared_instance().raw_instance();
    // SAFETY: the physical device belongs to this instance.
    let properties = unsafe { instance.get_physical_device_memory_properties(adapter.raw_physical_device()) };
    let heaps = &properties.memory_heaps[..properties.memory_heap_count as usize];
    // Bit 0 is DEVICE_LOCAL. The largest such heap: some drivers list a small window into it as another.
    heaps.iter().filter(|heap| heap.flags.as_raw() & 1 != 0).map(|heap| heap.size).max()
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

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, {:?})", self.adapter, ptr::from_ref(self))
    }
}
