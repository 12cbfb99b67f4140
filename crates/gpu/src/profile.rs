//! Where the device's time goes: a timestamp after every dispatch. Times are from the end of one to the end of the next, so that
//! those that overlap share theirs, and a submission is waited for before the next is recorded.

use std::collections::BTreeMap;
use std::time::Duration;

use ::backend::OperationTime;

use crate::device::Device;

/// A clock for the dispatches of a submission.
pub(crate) struct Clock {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    read: wgpu::Buffer,
    /// Kernels of the running submission.
    names: Vec<&'static str>,
    /// Calls and nanoseconds by kernel.
    times: BTreeMap<&'static str, (u64, f64)>,
}

impl Clock {
    /// A clock for submissions of at most `most` dispatches; none where the device has no timestamps.
    pub fn new(device: &Device, most: usize) -> Option<Self> {
        if !device.wgpu.features().contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES) {
            return None;
        }
        let count = most as u32 + 1;
        let buffer = |usage| {
            device.wgpu.create_buffer(&wgpu::BufferDescriptor {
                label: Some("timestamps"),
                size: 8 * u64::from(count),
                usage,
                mapped_at_creation: false,
            })
        };
        Some(Self {
            set: device.wgpu.create_query_set(&wgpu::QuerySetDescriptor {
                label: None,
                ty: wgpu::QueryType::Timestamp,
                count,
            }),
            resolved: buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC),
            read: buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST),
            names: Vec::new(),
            times: BTreeMap::new(),
        })
    }

    /// Notes a dispatch that `record` puts into the pass.
    pub fn around(
        &mut self,
        name: &'static str,
        pass: &mut wgpu::ComputePass<'static>,
        record: impl FnOnce(&mut wgpu::ComputePass<'static>),
    ) {
        if self.names.is_empty() {
            self.begin(pass);
        }
        record(pass);
        self.end(name, pass);
    }

    /// The moment from which the first time counts.
    pub fn begin(&self, pass: &mut wgpu::ComputePass<'static>) {
        pass.write_timestamp(&self.set, 0);
    }

    /// The moment at which something ends, and what follows begins.
    pub fn end(&mut self, name: &'static str, pass: &mut wgpu::ComputePass<'static>) {
        self.names.push(name);
        pass.write_timestamp(&self.set, self.names.len() as u32);
    }

    /// At the end of a submission's commands.
    pub fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        if !self.names.is_empty() {
            let count = self.names.len() as u32 + 1;
            encoder.resolve_query_set(&self.set, 0..count, &self.resolved, 0);
            encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.read, 0, 8 * u64::from(count));
        }
    }

    /// After the submission: waits for it and adds up its times. A device that fails here fails where it is read from too.
    pub fn collect(&mut self, device: &Device) {
        if self.names.is_empty() {
            return;
        }
        self.read.map_async(wgpu::MapMode::Read, .., |_| {});
        let waited = device.wgpu.poll(wgpu::PollType::wait_indefinitely());
        if let (Ok(_), Ok(view)) = (waited, self.read.get_mapped_range(..)) {
            let ticks: Vec<u64> = view.as_chunks().0.iter().map(|b| u64::from_ne_bytes(*b)).collect();
            let period = f64::from(device.queue.get_timestamp_period());
            for (name, ends) in self.names.iter().zip(ticks.windows(2)) {
                let sum = self.times.entry(name).or_default();
                *sum = (sum.0 + 1, sum.1 + ends[1].saturating_sub(ends[0]) as f64 * period);
            }
        }
        self.read.unmap();
        self.names.clear();
    }

    /// Times so far; starts anew.
    pub fn take(&mut self) -> Vec<OperationTime> {
        let times = std::mem::take(&mut self.times).into_iter();
        let time = |(name, (calls, ns)): (&'static str, (u64, f64))| OperationTime {
            name,
            calls,
            time: Duration::from_nanos(ns as u64),
        };
        times.map(time).collect()
    }
}
