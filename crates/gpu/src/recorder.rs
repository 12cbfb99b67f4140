//! From operations to the device: dispatches are collected in a pass, passes in a submission.
//!
//! A kernel's arguments are storage buffers (group 0, as it declares them) and parameters (group 1:
//! a slot of one uniform buffer). Bind groups are remembered by their buffers, which return in the same order at every
//! token. wgpu puts a barrier between dispatches only where one touches what another writes, and none where they wait by themselves (`chain`).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::backend::{Error, OperationTime, Result};

use crate::chain::{self, LINK_WORDS};
use crate::commands::{Commands, FIRST_SUBMISSION, Finished, PER_SUBMISSION};
use crate::device::Device;
use crate::kernel::{Call, MOST_BINDINGS};
use crate::pipelines::{Pipeline, Pipelines};
use crate::pool::{ALIGNMENT, Buffer};
use crate::profile::Clock;
use crate::upload::Gate;

/// Largest buffer for reading back that is kept for the next time.
const KEPT_BYTES: u64 = 8 << 20;

/// How long a read waits wide awake, which is longer than a token takes.
const SOON: Duration = Duration::from_millis(20);

/// Bind groups that are remembered: more than a token needs, however many layers.
const MOST_GROUPS: usize = 8192;

/// Numbers a kernel takes at most.
pub(crate) const MOST_PARAMS: usize = 32;

/// Bytes of what a kernel in a chain takes beside them.
pub(crate) const LINK_BYTES: u64 = 4 * LINK_WORDS.next_multiple_of(4) as u64;

pub(crate) struct Recorder {
    device: Arc<Device>,
    /// What weights wait behind: nothing may run before they have arrived.
    gate: Arc<Gate>,
    params: wgpu::Buffer,
    params_group: wgpu::BindGroup,
    /// Where kernels wait for each other by themselves.
    chain: Option<Counters>,
    /// Bytes from one slot of numbers to the next, and from its beginning to its link.
    stride: u32,
    link_at: u32,
    state: Mutex<State>,
    dispatches: AtomicU64,
    /// What earlier reads came back in: one for each step under way.
    staging: Mutex<Vec<wgpu::Buffer>>,
}

/// What kernels take that wait for each other by themselves.
struct Counters {
    group: wgpu::BindGroup,
    /// For each dispatch of a submission, workgroups that have finished, ever; behind them, how often one gave up.
    counters: wgpu::Buffer,
    /// How often that had happened when somebody looked last.
    gave_up: AtomicU32,
}

#[derive(Default)]
struct State {
    /// What is submitted as it grows.
    commands: Commands,
    /// Dispatches that the submission before this one had, 0 after a wait.
    before: usize,
    /// Submissions so far, and the last one.
    submitted: u64,
    last: Option<wgpu::SubmissionIndex>,
    /// By their layout and buffers.
    groups: HashMap<[u64; 1 + 2 * MOST_BINDINGS], wgpu::BindGroup>,
    /// What counters of workgroups will be when all that was sent has run.
    counts: Vec<u32>,
    /// Present when times are wanted.
    clock: Option<Clock>,
}

/// What is on its way to the host: so many bytes of each of some buffers.
pub(crate) struct Reading<const N: usize> {
    staging: wgpu::Buffer,
    receiver: Receiver<std::result::Result<(), wgpu::BufferAsyncError>>,
    lens: [u64; N],
    /// Submissions up to this one.
    submitted: u64,
    last: Option<wgpu::SubmissionIndex>,
}

/// Which bytes are copied from one buffer into another.
#[derive(Clone, Copy)]
pub(crate) struct Copy {
    pub from: u64,
    pub to: u64,
    pub len: u64,
}

impl Recorder {
    pub fn new(device: Arc<Device>, gate: Arc<Gate>, pipelines: &Pipelines, profile: bool) -> Self {
        let align = device.wgpu.limits().min_uniform_buffer_offset_alignment;
        let link_at = (4 * MOST_PARAMS as u32).next_multiple_of(align);
        let stride = link_at + if device.chains() { (LINK_BYTES as u32).next_multiple_of(align) } else { 0 };
        let params = device.wgpu.create_buffer(&wgpu::BufferDescriptor {
            label: Some("numbers"),
            size: u64::from(stride) * PER_SUBMISSION as u64,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let part = |binding, bytes| wgpu::BindGroupEntry {
            binding,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: &params,
                offset: 0,
                size: wgpu::BufferSize::new(bytes),
            }),
        };
        let group = |layout, entries: &[wgpu::BindGroupEntry<'_>]| {
            device.wgpu.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries })
        };
        let numbers = part(0, 4 * MOST_PARAMS as u64);
        let params_group = group(&pipelines.params_layout, std::slice::from_ref(&numbers));
        let chain = pipelines.chain_layout.as_ref().map(|layout| {
            let counters = device.wgpu.create_buffer(&wgpu::BufferDescriptor {
                label: Some("finished workgroups"),
                size: (4 * (PER_SUBMISSION as u64 + 1)).next_multiple_of(ALIGNMENT),
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            });
            let all = wgpu::BindGroupEntry {
                binding: 2,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer: &counters,
                    offset: 0,
                    size: wgpu::BufferSize::new(4 * (PER_SUBMISSION as u64 + 1)),
                }),
            };
            let group = group(layout, &[numbers, part(1, LINK_BYTES), all]);
            Counters { group, counters, gave_up: AtomicU32::new(0) }
        });
        let clock = profile.then(|| Clock::new(&device, PER_SUBMISSION)).flatten();
        let state = Mutex::new(State { clock, counts: vec![0; PER_SUBMISSION], ..State::default() });
        let dispatches = AtomicU64::new(0);
        let staging = Mutex::default();
        Self { device, gate, params, params_group, chain, stride, link_at, state, dispatches, staging }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic in between leaves at worst a dispatch unrecorded.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time spent in each kernel since the last call.
    pub fn take_profile(&self) -> Vec<OperationTime> {
        self.state().clock.as_mut().map(Clock::take).unwrap_or_default()
    }

    pub fn dispatches(&self) -> u64 {
        self.dispatches.load(Ordering::Relaxed)
    }

    /// Records one dispatch of `grid` workgroups.
    pub fn dispatch(&self, pipeline: &Pipeline, call: &Call<'_>, grid: [u32; 3]) {
        let buffers = call.buffers();
        if grid.contains(&0) {
            return;
        }
        let mut state = self.state();
        // Each submission has twice as many as the one before: the host takes a third of the time that the device takes for a dispatch, so
        // the device never waits for the next.
        if state.commands.recorded >= (2 * state.before).clamp(FIRST_SUBMISSION, PER_SUBMISSION) {
            self.submit_state(&mut state);
        }
        let State { commands, groups, clock, .. } = &mut *state;
        let mut key = [0; 1 + 2 * MOST_BINDINGS];
        key[0] = pipeline.layout_id;
        key[1..].as_chunks_mut().0.iter_mut().zip(buffers).for_each(|(id, buffer)| *id = buffer.id());
        let group = groups.entry(key).or_insert_with(|| {
            let entries: Vec<_> = (0..)
                .zip(buffers)
                .map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.binding() })
                .collect();
            let descriptor = wgpu::BindGroupDescriptor {
                label: None,
                layout: &pipeline.buffers_layout,
                entries: &entries,
            };
            self.device.wgpu.create_bind_group(&descriptor)
        });
        let offset = commands.recorded as u32 * self.stride;
        commands.numbers.resize(offset as usize, 0);
        commands.numbers.extend_from_slice(call.params());
        commands.add(pipeline, buffers, grid.iter().product(), clock.is_some());
        let pass = commands.pass(&self.device);
        let record = |pass: &mut wgpu::ComputePass<'static>| {
            pass.set_pipeline(&pipeline.wgpu);
            pass.set_bind_group(0, &*group, &[]);
            match &self.chain {
                Some(chain) if pipeline.chains => {
                    pass.set_bind_group(1, &chain.group, &[offset, offset + self.link_at]);
                }
                _ => pass.set_bind_group(1, &self.params_group, &[offset]),
            }
            pass.dispatch_workgroups(grid[0], grid[1], grid[2]);
        };
        match clock {
            Some(clock) => clock.around(pipeline.name, pass, record),
            None => record(pass),
        }
        self.dispatches.fetch_add(1, Ordering::Relaxed);
    }

    /// Records copies, after everything recorded so far.
    pub fn copy(&self, from: &Buffer, to: &Buffer, copies: &[Copy]) {
        self.encode(|encoder| {
            for copy in copies.iter().filter(|copy| copy.len > 0) {
                let (source, target) = (from.offset() + copy.from, to.offset() + copy.to);
                encoder.copy_buffer_to_buffer(from.wgpu(), source, to.wgpu(), target, copy.len);
            }
        });
    }

    /// Records zeros over some bytes of a buffer.
    pub fn clear(&self, buffer: &Buffer, bytes: Range<u64>) {
        let len = bytes.end - bytes.start;
        if len > 0 {
            let first = buffer.offset() + bytes.start;
            self.encode(|encoder| encoder.clear_buffer(buffer.wgpu(), first, Some(len)));
        }
    }

    fn encode(&self, record: impl FnOnce(&mut wgpu::CommandEncoder)) {
        record(self.state().commands.encoder(&self.device));
    }

    /// Writes values from the host, after everything recorded so far and before everything that follows.
    pub fn write(&self, buffer: &Buffer, bytes: &[u8]) {
        let mut state = self.state();
        // A write through the queue happens before the next submission: what is recorded must not be in that.
        self.submit_state(&mut state);
        self.device.queue.write_buffer(buffer.wgpu(), buffer.offset(), bytes);
    }

    /// Records a copy of `len` bytes from a place in a buffer that is no tensor's to a place in another.
    pub fn copy_from(&self, source: &wgpu::Buffer, from: u64, to: &Buffer, at: u64, len: u64) {
        self.encode(|encoder| {
            encoder.copy_buffer_to_buffer(source, from, to.wgpu(), to.offset() + at, len);
        });
    }

    /// Starts what has been recorded.
    pub fn submit(&self) {
        self.submit_state(&mut self.state());
    }

    fn submit_state(&self, state: &mut State) {
        if state.commands.is_empty() {
            return;
        }
        if let Some(clock) = &state.clock {
            clock.resolve(state.commands.encoder(&self.device));
        }
        state.before = state.commands.recorded;
        state.submitted += 1;
        let finished = state.commands.finish(&self.device);
        state.last = Some(self.send(finished, &mut state.counts));
        if let Some(clock) = &mut state.clock {
            clock.collect(&self.device);
        }
        if self.device.stale.swap(false, Ordering::Relaxed) || state.groups.len() > MOST_GROUPS {
            state.groups.clear();
        }
    }

    fn send(&self, finished: Finished, counts: &mut [u32]) -> wgpu::SubmissionIndex {
        let Finished { mut numbers, links, commands } = finished;
        let patience = chain::patience(self.device.adapter.software);
        for (own, words) in chain::words(&links, counts, patience) {
            let at = own * self.stride as usize + self.link_at as usize;
            numbers.resize(numbers.len().max(at + LINK_BYTES as usize), 0);
            numbers[at..][..4 * LINK_WORDS].copy_from_slice(bytemuck::cast_slice(&words));
        }
        self.gate.wait();
        self.device.queue.write_buffer(&self.params, 0, &numbers);
        self.device.queue.submit([commands])
    }

    /// Whether dispatches are timed, each on its own: a submission is waited for before the next is recorded.
    pub fn is_timed(&self) -> bool {
        self.state().clock.is_some()
    }

    /// Waits for everything recorded, and returns the first `len` bytes of each buffer.
    pub fn read<const N: usize>(&self, wanted: [(&Buffer, u64); N]) -> Result<[Vec<u8>; N]> {
        self.finish_read(self.begin_read(wanted)?)
    }

    /// Starts everything recorded, and a copy of the first `len` bytes of each buffer to the host.
    pub fn begin_read<const N: usize>(&self, wanted: [(&Buffer, u64); N]) -> Result<Reading<N>> {
        let total: u64 = wanted.iter().map(|(_, len)| len.next_multiple_of(8)).sum();
        let counter = if self.chain.is_some() { 8 } else { 0 };
        let staging = self.staging((total + counter).max(8))?;
        self.encode(|encoder| {
            let mut to = 0;
            for (buffer, len) in wanted {
                let len = len.next_multiple_of(4);
                if len > 0 {
                    encoder.copy_buffer_to_buffer(buffer.wgpu(), buffer.offset(), &staging, to, len);
                }
                to += len.next_multiple_of(8);
            }
            if let Some(Counters { counters, .. }) = &self.chain {
                encoder.copy_buffer_to_buffer(counters, 4 * PER_SUBMISSION as u64, &staging, to, 4);
            }
        });
        self.submit();
        let mut state = self.state();
        // The device has something to do meanwhile.
        state.before = PER_SUBMISSION;
        let (submitted, last) = (state.submitted, state.last.clone());
        drop(state);
        let (sender, receiver) = std::sync::mpsc::channel();
        staging.map_async(wgpu::MapMode::Read, .., move |result| {
            // Nobody waits for it, if nobody wants it any more.
            let _ = sender.send(result);
        });
        Ok(Reading { staging, receiver, lens: wanted.map(|(_, len)| len), submitted, last })
    }

    /// Waits for what is being read, not for what has been submitted since.
    pub fn finish_read<const N: usize>(&self, reading: Reading<N>) -> Result<[Vec<u8>; N]> {
        let Reading { staging, receiver, lens, submitted, last } = reading;
        let broken = |why: String| Error::Device(format!("{}: {why}", self.device.adapter.name));
        // A device that is soon ready is looked at again and again: it would wait while this thread is woken.
        let until = Instant::now() + if self.device.adapter.software { Duration::ZERO } else { SOON };
        let mut mapped = None;
        while mapped.is_none() && Instant::now() < until {
            let looked = self.device.wgpu.poll(wgpu::PollType::Poll);
            mapped = receiver.try_recv().ok();
            if looked.is_err() {
                break;
            }
        }
        let mapped = match mapped {
            Some(mapped) => mapped,
            None => {
                let until = wgpu::PollType::Wait { submission_index: last, timeout: None };
                let waited = self.device.wgpu.poll(until);
                if waited.is_err() {
                    // Only here a lost device says so.
                    let _ = self.device.wgpu.poll(wgpu::PollType::wait_indefinitely());
                }
                self.device.check()?;
                waited.map_err(|e| broken(e.to_string()))?;
                receiver.recv().map_err(|e| broken(e.to_string()))?
            }
        };
        self.device.check()?;
        mapped.map_err(|e| broken(e.to_string()))?;
        let mut state = self.state();
        if state.submitted == submitted {
            // That was all it had to do.
            state.before = 0;
        }
        drop(state);
        let view = staging.get_mapped_range(..).map_err(|e| broken(e.to_string()))?;
        let mut from = 0;
        let bytes = lens.map(|len| {
            let bytes = view[from..from + len as usize].to_vec();
            from += len.next_multiple_of(8) as usize;
            bytes
        });
        let gave_up = self.chain.as_ref().is_some_and(|chain| {
            let count = u32::from_ne_bytes(view[from..from + 4].try_into().expect("four bytes"));
            chain.gave_up.swap(count, Ordering::Relaxed) != count
        });
        drop(view);
        staging.unmap();
        if staging.size() <= KEPT_BYTES {
            self.kept().push(staging);
        }
        if gave_up {
            return Err(broken("a kernel waited for another one for seconds, in vain".into()));
        }
        Ok(bytes)
    }

    fn kept(&self) -> MutexGuard<'_, Vec<wgpu::Buffer>> {
        // A list of buffers, never half-changed.
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer that the host can read.
    fn staging(&self, size: u64) -> Result<wgpu::Buffer> {
        // One that is too small has had its time.
        if let Some(kept) = self.kept().pop().filter(|kept| kept.size() >= size) {
            return Ok(kept);
        }
        let usage = wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ;
        let size = if size <= KEPT_BYTES { size.next_power_of_two() } else { size };
        let staging = self.device.buffer("what is read back", size, usage)?;
        // Not worth counting on its room.
        self.device.used.fetch_sub(size, Ordering::Relaxed);
        Ok(staging)
    }

    /// Lets kernels wait for more workgroups than there are, or for fewer.
    #[cfg(test)]
    pub fn expect(&self, more: i32) {
        self.state().counts.iter_mut().for_each(|count| *count = count.wrapping_add_signed(more));
    }

    /// Seconds that the device takes for what `run` records, which must fit one submission.
    #[cfg(test)]
    pub fn device_seconds(&self, run: impl FnOnce()) -> f64 {
        let mut clock = Clock::new(&self.device, 1).expect("a device with timestamps");
        self.submit();
        let mut state = self.state();
        // Not each dispatch on its own.
        state.clock = None;
        state.before = PER_SUBMISSION;
        clock.begin(state.commands.pass(&self.device));
        drop(state);
        run();
        let mut state = self.state();
        clock.end("all", state.commands.pass(&self.device));
        clock.resolve(state.commands.encoder(&self.device));
        self.submit_state(&mut state);
        clock.collect(&self.device);
        clock.take().iter().map(|all| all.time.as_secs_f64()).sum()
    }
}
