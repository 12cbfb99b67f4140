//! Compiled kernels: each variant once, also from one run of the program to the next where the driver allows.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::Device;
use crate::kernel::{Access, Binding, Variant};
use crate::recorder::{LINK_BYTES, MOST_PARAMS};

/// A kernel ready to run.
pub(crate) struct Pipeline {
    pub name: &'static str,
    pub wgpu: wgpu::ComputePipeline,
    pub buffers_layout: wgpu::BindGroupLayout,
    /// Equal for equal layouts.
    pub layout_id: u64,
    pub bindings: &'static [Binding],
    /// Whether it waits for the one in front by itself.
    pub chains: bool,
}

/// The kernels that have been needed so far.
pub(crate) struct Pipelines {
    device: Arc<Device>,
    pub params_layout: wgpu::BindGroupLayout,
    /// The same for kernels that wait for each other, where there are such.
    pub chain_layout: Option<wgpu::BindGroupLayout>,
    /// Empty where the driver keeps none.
    kept: Option<wgpu::PipelineCache>,
    file: Option<PathBuf>,
    compiled: Mutex<Compiled>,
}

#[derive(Default)]
struct Compiled {
    pipelines: HashMap<Variant, Arc<Pipeline>>,
    /// How many were not there when the program started.
    new: usize,
}

impl Pipelines {
    pub fn new(device: Arc<Device>) -> Self {
        let entry = |binding, ty, has_dynamic_offset, bytes| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty,
                has_dynamic_offset,
                min_binding_size: wgpu::BufferSize::new(bytes),
            },
            count: None,
        };
        let layout = |entries: &[wgpu::BindGroupLayoutEntry]| {
            let label = Some("numbers");
            device.wgpu.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries })
        };
        let uniform = wgpu::BufferBindingType::Uniform;
        let numbers = entry(0, uniform, true, 4 * MOST_PARAMS as u64);
        let link = entry(1, uniform, true, LINK_BYTES);
        let counters = entry(2, wgpu::BufferBindingType::Storage { read_only: false }, false, 4);
        let params_layout = layout(&[numbers]);
        let chain_layout = device.chains().then(|| layout(&[numbers, link, counters]));
        let file = device
            .wgpu
            .features()
            .contains(wgpu::Features::PIPELINE_CACHE)
            .then(|| wgpu::util::pipeline_cache_key(&device.info))
            .flatten()
            .and_then(|key| Some(cache_folder()?.join(key)));
        let kept = file.as_ref().map(|file| {
            let data = std::fs::read(file).ok();
            let descriptor =
                wgpu::PipelineCacheDescriptor { label: None, data: data.as_deref(), fallback: true };
            // SAFETY: the data, if any, is what this very call's cache returned in an earlier run, in a folder of the
            // user's own; wgpu checks its header, and a driver must check the rest.
            unsafe { device.wgpu.create_pipeline_cache(&descriptor) }
        });
        Self { device, params_layout, chain_layout, kept, file, compiled: Mutex::default() }
    }

    /// A kernel, compiled now if it is new.
    pub fn get(&self, variant: &Variant) -> Arc<Pipeline> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = compiled.pipelines.get(variant) {
            return pipeline.clone();
        }
        let pipeline = Arc::new(self.compile(variant));
        compiled.pipelines.insert(*variant, pipeline.clone());
        compiled.new += 1;
        pipeline
    }

    fn compile(&self, variant: &Variant) -> Pipeline {
        debug_assert!(variant.is_reachable(), "no chooser lists {variant}");
        let device = &self.device.wgpu;
        let (name, bindings) = (variant.kernel.name, variant.kernel.bindings);
        let source = variant.source(self.device.profile.limits.subgroup, self.device.chains());
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(name),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        };
        let module = if cfg!(debug_assertions) {
            device.create_shader_module(descriptor)
        } else {
            // SAFETY: the kernels are this crate's own and index only what their callers size for them; debug builds,
            // in which all tests run, keep the checks. Loops end by their counters.
            unsafe { device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) }
        };
        let entries: Vec<_> = (0..)
            .zip(bindings)
            .map(|(binding, Binding { access, .. })| wgpu::BindGroupLayoutEntry {
                binding,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: *access == Access::Read },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let buffers_layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(name),
            entries: &entries,
        });
        let chain = self.chain_layout.as_ref().filter(|_| variant.kernel.chains());
        let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(name),
            bind_group_layouts: &[Some(&buffers_layout), Some(chain.unwrap_or(&self.params_layout))],
            immediate_size: 0,
        });
        let wgpu = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(name),
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: self.kept.as_ref(),
        });
        Pipeline {
            name,
            wgpu,
            buffers_layout,
            layout_id: layout_id(bindings),
            bindings,
            chains: chain.is_some(),
        }
    }
}

/// A number that is equal for equal layouts: a bit for each binding that is written, and one behind the last.
fn layout_id(bindings: &[Binding]) -> u64 {
    bindings.iter().rev().fold(1, |id, binding| 2 * id + u64::from(binding.access == Access::Write))
}

impl Drop for Pipelines {
    /// Keeps what was compiled for the next run. Nothing depends on it, so a disk that refuses is not an error.
    fn drop(&mut self) {
        let new = self.compiled.lock().unwrap_or_else(PoisonError::into_inner).new;
        let (Some(file), Some(kept)) = (&self.file, &self.kept) else { return };
        if new == 0 {
            return;
        }
        if let (Some(data), Some(folder)) = (kept.get_data(), file.parent()) {
            let beside = file.with_extension(format!("{}", std::process::id()));
            let written = std::fs::create_dir_all(folder)
                .and_then(|()| std::fs::write(&beside, data))
                .and_then(|()| std::fs::rename(&beside, file));
            if written.is_err() {
                let _ = std::fs::remove_file(&beside);
            }
        }
    }
}

/// Where programs of this user keep what they can make again.
fn cache_folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = if cfg!(windows) {
        variable("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        variable("HOME").map(|home| home.join("Library/Caches"))
    } else {
        variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")))
    };
    base.map(|base| base.join("pleiad").join("pipelines"))
}
