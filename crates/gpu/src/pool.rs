//! Buffers for activations, used again and again.
//!
//! Operations run on the device in the order they were recorded, so a buffer may be handed out again as soon as its last
//! handle is dropped, even while the device has not come to its last use: whoever writes it next does so later.
//!
//! Where kernels wait for each other by themselves (`chain`), small buffers rest until the step is over before they are used again: a chain
//! ends where it would write what it has touched.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::backend::{Error, Result};

use crate::device::Device;

/// Largest buffer that rests: more than what a token needs of anything but logits, and little enough for some hundreds.
const RESTS: u64 = 512 << 10;

const USAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

pub(crate) struct Pool {
    device: Arc<Device>,
    shelf: Arc<Shelf>,
}

/// Free buffers by their size, the last returned last.
pub(crate) struct Shelf {
    device: Arc<Device>,
    free: Mutex<BTreeMap<u64, Vec<Named>>>,
    /// Whether small ones rest until their step is over, and those that do.
    rests: bool,
    resting: Mutex<Vec<Named>>,
}

/// A buffer and its number, by which bind groups are remembered.
pub(crate) struct Named {
    pub buffer: wgpu::Buffer,
    pub id: u64,
}

impl Named {
    fn new(buffer: wgpu::Buffer) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { buffer, id: NEXT.fetch_add(1, Ordering::Relaxed) }
    }
}

/// Bytes of a buffer for `len` bytes: rounded up to four sizes per power of two. All are whole lines of a cache: in a chain, who loads from one buffer must not
/// find something old of its neighbour later.
fn size_for(len: u64) -> u64 {
    let len = len.max(256);
    len.next_multiple_of(1 << (len.ilog2() - 2)).next_multiple_of(ALIGNMENT)
}

impl Shelf {
    fn new(device: Arc<Device>, rests: bool) -> Arc<Self> {
        Arc::new(Self { device, free: Mutex::default(), rests, resting: Mutex::default() })
    }

    fn free(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<Named>>> {
        // Lists of buffers, never half-changed.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resting(&self) -> MutexGuard<'_, Vec<Named>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, named: Named) {
        if self.rests && named.buffer.size() <= RESTS {
            self.resting().push(named);
        } else {
            self.free().entry(named.buffer.size()).or_default().push(named);
        }
    }

    /// What has rested is free again, and is taken in the same order as before.
    fn wake(&self) {
        let resting = std::mem::take(&mut *self.resting());
        if resting.is_empty() {
            return;
        }
        let mut free = self.free();
        for named in resting {
            free.entry(named.buffer.size()).or_default().push(named);
        }
        for same in free.range_mut(..=RESTS).map(|(_, same)| same) {
            same.sort_by_key(|named| std::cmp::Reverse(named.id));
        }
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        let free = self.free();
        let bytes = free.values().flatten().chain(&*self.resting()).map(|named| named.buffer.size()).sum();
        drop(free);
        self.device.used.fetch_sub(bytes, Ordering::Relaxed);
        self.device.stale.store(true, Ordering::Relaxed);
    }
}

impl Pool {
    pub fn new(device: Arc<Device>) -> Self {
        Self { shelf: Shelf::new(device.clone(), device.chains()), device }
    }

    /// A step begins: what the one before has used is free again.
    pub fn wake(&self) {
        self.shelf.wake();
    }

    /// A buffer of at least `len` bytes, with what earlier use has left in it.
    pub fn take(&self, len: u64) -> Result<Buffer> {
        self.reachable("an operation's activations", len, "take fewer tokens in a step (--chunk)")?;
        let size = size_for(len).min(self.device.largest_binding);
        let found = self.shelf.free().get_mut(&size).and_then(Vec::pop);
        let named = match found {
            Some(named) => named,
            None => Named::new(self.device.buffer("activations", size, USAGE)?),
        };
        Ok(Buffer::new(named, Home::Shelf(self.shelf.clone())))
    }

    /// That a kernel can reach so many bytes at once.
    fn reachable(&self, what: &str, len: u64, advice: &str) -> Result<()> {
        let Device { largest_binding, adapter, .. } = &*self.device;
        if len <= *largest_binding {
            return Ok(());
        }
        Err(Error::Unsupported(format!(
            "{:.1} MB for {what}, and {} reaches {:.1} MB at once: {advice}",
            len as f64 / 1e6,
            adapter.name,
            *largest_binding as f64 / 1e6
        )))
    }

    /// A buffer of its own that goes back to the system: for weights and caches.
    pub fn fresh(&self, what: &str, len: u64) -> Result<Buffer> {
        self.reachable(what, len, "a shorter context needs less")?;
        let named = Named::new(self.device.buffer(what, len.max(16).next_multiple_of(ALIGNMENT), USAGE)?);
        Ok(Buffer::new(named, Home::System(self.device.clone())))
    }
}

/// A buffer on the device, or what of one follows a place in it; clones share it. One from the pool returns to it when the last
/// of them is dropped.
#[derive(Clone)]
pub(crate) struct Buffer {
    whole: Arc<Whole>,
    /// Bytes before the first.
    offset: u64,
}

struct Whole {
    /// Absent only while it is dropped.
    named: Option<Named>,
    home: Home,
}

/// Where a buffer goes when it is dropped.
enum Home {
    Shelf(Arc<Shelf>),
    System(Arc<Device>),
}

/// Bytes that a place in a buffer is a multiple of: what the most demanding adapter wants of a binding.
pub(crate) const ALIGNMENT: u64 = 256;

impl Buffer {
    fn new(named: Named, home: Home) -> Self {
        Self { whole: Arc::new(Whole { named: Some(named), home }), offset: 0 }
    }

    fn named(&self) -> &Named {
        self.whole.named.as_ref().expect("a buffer has its memory until it is dropped")
    }

    /// What follows `bytes`, a multiple of `ALIGNMENT`.
    pub fn behind(&self, bytes: u64) -> Self {
        debug_assert!(bytes.is_multiple_of(ALIGNMENT));
        Self { whole: self.whole.clone(), offset: self.offset + bytes }
    }

    /// All of the buffer that this one is a part of.
    pub fn beginning(&self) -> Self {
        Self { whole: self.whole.clone(), offset: 0 }
    }

    /// The whole buffer: what this one has begins at `offset`.
    pub fn wgpu(&self) -> &wgpu::Buffer {
        &self.named().buffer
    }

    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes from the beginning of this one to that of another that follows in the same buffer.
    pub fn distance_to(&self, other: &Buffer) -> Option<u64> {
        let same = Arc::ptr_eq(&self.whole, &other.whole);
        other.offset.checked_sub(self.offset).filter(|_| same)
    }

    /// What kernels see.
    pub fn binding(&self) -> wgpu::BindingResource<'_> {
        wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: self.wgpu(),
            offset: self.offset,
            size: None,
        })
    }

    /// Whether it is for activations.
    pub fn is_pooled(&self) -> bool {
        matches!(self.whole.home, Home::Shelf(_))
    }

    /// Equal for the same place in the same buffer.
    pub fn id(&self) -> [u64; 2] {
        [self.named().id, self.offset]
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        match (&self.home, self.named.take()) {
            (Home::Shelf(shelf), Some(named)) => {
                shelf.put(named);
            }
            (Home::System(device), Some(named)) => {
                device.used.fetch_sub(named.buffer.size(), Ordering::Relaxed);
                device.stale.store(true, Ordering::Relaxed);
            }
            (_, None) => {}
        }
    }
}
