//! What only Vulkan can do for us, behind wgpu's back.

use ash::vk;
use wgpu::hal::api::Vulkan;

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

/// A device whose queue computes and does nothing else, where there is one; `None` where there is not, or it will not open this way.
///
/// wgpu always takes the first family of queues, which draws as well. On an H200 kernels that share much memory are slower there: a prompt of 128
/// tokens by 9 to 19%, attention over 16,384 positions by 38%. wgpu's barriers name stages of drawing, too, which such a queue does not
/// have, and which Vulkan does not allow there; NVIDIA's driver takes no notice of them. So this is for its GPUs alone.
pub(crate) fn open_computing(
    raw: &wgpu::Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Option<(wgpu::Device, wgpu::Queue)> {
    let info = raw.get_info();
    // NVK is Mesa's driver for the same GPUs.
    if info.vendor != NVIDIA || info.driver.contains("NVK") {
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
