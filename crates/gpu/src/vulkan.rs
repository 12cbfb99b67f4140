//! What only Vulkan can do for us, behind wgpu's back.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::OnceLock;

use ash::vk;
use wgpu::hal::api::Vulkan;

use crate::chain::Link;

/// The vendor's number, as PCI has it.
const NVIDIA: u32 = 0x10de;

/// Memory of the adapter's own, where its API tells.
pub(crate) fn memory(raw: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: the adapter is only asked, and outlives the guard.
    let adapter = unsafe { raw.as_hal::<Vulkan>() }?;
    let instance = adapter.shared_instance().raw_instance();
    // SAFETY: the physical device belongs to this instance.
    let properties = unsafe { instance.get_physical_device_memory_properties(adapter.raw_physical_device()) };
    // The largest such heap: some drivers list a small window into it as another.
    let heaps = properties.memory_heaps_as_slice().iter();
    heaps.filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL)).map(|heap| heap.size).max()
}

/// Whether the driver is NVIDIA's own: NVK is Mesa's for the same GPUs.
fn is_nvidia(info: &wgpu::AdapterInfo) -> bool {
    info.backend == wgpu::Backend::Vulkan && info.vendor == NVIDIA && !info.driver.contains("NVK")
}

/// Whether all workgroups of a dispatch start before any of the next, which chains need. Vulkan promises nothing; here it has been seen.
pub(crate) fn starts_in_order(info: &wgpu::AdapterInfo) -> bool {
    is_nvidia(info)
}

/// A device whose queue computes and does nothing else, where there is one; `None` where there is not, or it will not open this way. With `chains`, there is no
/// barrier in front of dispatches that wait by themselves.
///
/// wgpu always takes the first family of queues, which draws as well. On an H200 kernels that share much memory are slower there: a prompt of 128
/// tokens by 9 to 19%, attention over 16,384 positions by 38%. wgpu's barriers name stages of drawing, too, which such a queue does not
/// have, and which Vulkan does not allow there; NVIDIA's driver takes no notice of them. So this is for its GPUs alone.
pub(crate) fn open_computing(
    raw: &wgpu::Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
    chains: bool,
) -> Option<(wgpu::Device, wgpu::Queue)> {
    if !is_nvidia(&raw.get_info()) {
        return None;
    }
    let opened = {
        // SAFETY: the adapter is only asked, and makes a device that is its own.
        let adapter = unsafe { raw.as_hal::<Vulkan>() }?;
        let (instance, physical) = (adapter.shared_instance().raw_instance(), adapter.raw_physical_device());
        // SAFETY: the physical device belongs to this instance.
        let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
        let computes = |flags: vk::QueueFlags| {
            flags.contains(vk::QueueFlags::COMPUTE) && !flags.contains(vk::QueueFlags::GRAPHICS)
        };
        let family = families.iter().position(|family| computes(family.queue_flags))? as u32;
        let extensions = adapter.required_device_extensions(descriptor.required_features);
        let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        let mut features = adapter.physical_device_features(&extensions, descriptor.required_features);
        let queues =
            [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
        let info =
            vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names);
        let info = features.add_to_device_create(info);
        // SAFETY: the physical device is of this instance and has this family; extensions and features are those that wgpu would ask
        // for.
        let device = unsafe { instance.create_device(physical, &info, None) }.ok()?;
        let device = if chains { with_links(device) } else { device };
        let wgpu::DeviceDescriptor { required_features, required_limits, memory_hints, .. } = descriptor;
        // SAFETY: the device was made from this adapter, with these extensions, features and family, and is given away.
        unsafe {
            adapter.device_from_raw(
                device,
                None,
                &extensions,
                *required_features,
                required_limits,
                memory_hints,
                family,
                0,
            )
        }
        .ok()?
    };
    // SAFETY: it was made from this adapter, with the features that are required.
    unsafe { raw.create_device_from_hal::<Vulkan>(opened, descriptor) }.ok()
}

/// The driver's own functions behind [`barrier`] and [`dispatch`].
struct Driver {
    barrier: vk::PFN_vkCmdPipelineBarrier,
    dispatch: vk::PFN_vkCmdDispatch,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

thread_local! {
    /// How the dispatches that this thread is about to record follow one another; empty where it is wgpu that decides.
    static LINKS: RefCell<Links> = RefCell::default();
}

#[derive(Default)]
struct Links {
    upcoming: VecDeque<Link>,
    /// Whether the one before waits by itself, or is waited for.
    in_chain: bool,
}

/// Calls `encode`, in which wgpu records these dispatches; those that wait by themselves then have no barrier in front.
pub(crate) fn linked<T>(links: &[Link], encode: impl FnOnce() -> T) -> T {
    LINKS.set(Links { upcoming: links.iter().copied().collect(), in_chain: false });
    let result = encode();
    LINKS.take();
    result
}

/// The same device, which asks here before it puts a barrier between dispatches. Where another driver has been asked that before, it does so as ever.
fn with_links(device: ash::Device) -> ash::Device {
    let mut functions = device.fp_v1_0().clone();
    let own = [functions.cmd_pipeline_barrier as usize, functions.cmd_dispatch as usize];
    let driver = DRIVER
        .get_or_init(|| Driver { barrier: functions.cmd_pipeline_barrier, dispatch: functions.cmd_dispatch });
    if [driver.barrier as usize, driver.dispatch as usize] != own {
        return device;
    }
    functions.cmd_pipeline_barrier = barrier;
    functions.cmd_dispatch = dispatch;
    ash::Device::from_parts_1_3(
        device.handle(),
        functions,
        device.fp_v1_1().clone(),
        device.fp_v1_2().clone(),
        device.fp_v1_3().clone(),
    )
}

/// Stands for the driver's `vkCmdPipelineBarrier`.
unsafe extern "system" fn barrier(
    commands: vk::CommandBuffer,
    from: vk::PipelineStageFlags,
    to: vk::PipelineStageFlags,
    flags: vk::DependencyFlags,
    memory_count: u32,
    memory: *const vk::MemoryBarrier<'_>,
    buffer_count: u32,
    buffers: *const vk::BufferMemoryBarrier<'_>,
    image_count: u32,
    images: *const vk::ImageMemoryBarrier<'_>,
) {
    // What copies have written, or the host, nobody in a chain waits for.
    let shaders = !from.intersects(vk::PipelineStageFlags::TRANSFER | vk::PipelineStageFlags::HOST);
    if shaders && LINKS.with_borrow(|links| matches!(links.upcoming.front(), Some(Link::Next(..)))) {
        return;
    }
    if let Some(driver) = DRIVER.get() {
        // SAFETY: as it was called itself.
        unsafe {
            (driver.barrier)(
                commands,
                from,
                to,
                flags,
                memory_count,
                memory,
                buffer_count,
                buffers,
                image_count,
                images,
            );
        }
    }
}

/// Stands for the driver's `vkCmdDispatch`.
unsafe extern "system" fn dispatch(commands: vk::CommandBuffer, x: u32, y: u32, z: u32) {
    let Some(driver) = DRIVER.get() else { return };
    let alone = LINKS.with_borrow_mut(|links| {
        let link = links.upcoming.pop_front();
        let before =
            std::mem::replace(&mut links.in_chain, matches!(link, Some(Link::First(_) | Link::Next(..))));
        matches!(link, Some(Link::First(_))) || matches!(link, Some(Link::Plain)) && before
    });
    if alone {
        // The barriers inside a chain are left out, and wgpu believes that they were not: this one stands for them.
        let computing = vk::PipelineStageFlags::COMPUTE_SHADER;
        let access = vk::AccessFlags::SHADER_READ | vk::AccessFlags::SHADER_WRITE;
        let all = vk::MemoryBarrier::default().src_access_mask(access).dst_access_mask(access);
        let none = vk::DependencyFlags::empty();
        // SAFETY: dispatches are recorded outside of passes that draw, where barriers are allowed.
        unsafe {
            (driver.barrier)(
                commands,
                computing,
                computing,
                none,
                1,
                &all,
                0,
                std::ptr::null(),
                0,
                std::ptr::null(),
            );
        }
    }
    // SAFETY: as it was called itself.
    unsafe { (driver.dispatch)(commands, x, y, z) }
}
