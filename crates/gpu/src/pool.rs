//! Buffers for activations, used again and again.
//!
//! Operations run on the device in the order they were recorded, so a buffer may be handed out again as soon as its last
//! handle is dropped, even while the device has not come to its last use: whoever writes it next does so later.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ::backend::{Error, Result};

use crate::device::Device;

const USAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

/// Free buffers by their size, the last returned last.
pub(crate) struct Pool {
    device: Arc<Device>,
    free: Mutex<BTreeMap<u64, Vec<Named>>>,
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

/// Bytes of a buffer for `len` bytes: rounded up to four sizes per power of two.
fn size_for(len: u64) -> u64 {
    let len = len.max(256);
    len.next_multiple_of(1 << (len.ilog2() - 2))
}

impl Pool {
    pub fn new(device: Arc<Device>) -> Self {
        Self { device, free: Mutex::default() }
    }

    /// A buffer of at least `len` bytes, with what earlier use has left in it.
    pub fn take(self: &Arc<Self>, len: u64) -> Result<Buffer> {
        self.reachable("an operation's activations", len, "take fewer tokens in a step (--chunk)")?;
        let size = size_for(len).min(self.device.largest_binding);
        let found =
            self.free.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&size).and_then(Vec::pop);
        let named = match found {
            Some(named) => named,
            None => Named::new(self.device.buffer("activations", size, USAGE)?),
        };
        Ok(Buffer { named: Some(named), home: Home::Pool(self.clone()) })
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
        let named = Named::new(self.device.buffer(what, len.max(16).next_multiple_of(16), USAGE)?);
        Ok(Buffer { named: Some(named), home: Home::System(self.device.clone()) })
    }
}

/// A buffer on the device. One from the pool returns to it when dropped.
pub(crate) struct Buffer {
    /// Absent only while it is dropped.
    named: Option<Named>,
    home: Home,
}

/// Where a buffer goes when it is dropped.
enum Home {
    Pool(Arc<Pool>),
    System(Arc<Device>),
}

impl Buffer {
    fn named(&self) -> &Named {
        self.named.as_ref().expect("a buffer has its memory until it is dropped")
    }

    pub fn wgpu(&self) -> &wgpu::Buffer {
        &self.named().buffer
    }

    pub fn id(&self) -> u64 {
        self.named().id
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match (&self.home, self.named.take()) {
            (Home::Pool(pool), Some(named)) => {
                let mut free = pool.free.lock().unwrap_or_else(PoisonError::into_inner);
                free.entry(named.buffer.size()).or_default().push(named);
            }
            (Home::System(device), Some(named)) => {
                device.used.fetch_sub(named.buffer.size(), Ordering::Relaxed);
                device.stale.store(true, Ordering::Relaxed);
            }
            (_, None) => {}
        }
    }
}
