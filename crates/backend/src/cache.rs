//! What sequences keep between steps.

use crate::{GdnShape, KvImage, KvShape, Ops, RecurrentImage, Result};

/// Makes, cuts back, copies, saves and loads caches and recurrent states.
pub trait Cache: Ops {
    /// An empty cache. It grows as tokens are appended.
    fn kv_cache(&self, shape: &KvShape) -> Result<Self::KvCache>;

    /// Forgets all but the first `len` tokens. Returns false, and changes nothing, when a ring has already overwritten
    /// tokens that the shorter cache would need.
    fn kv_truncate(&self, cache: &mut Self::KvCache, len: usize) -> Result<bool>;

    /// Waits, and copies a cache to the host.
    fn kv_save(&self, cache: &Self::KvCache) -> Result<KvImage>;

    /// A cache from its image.
    fn kv_load(&self, shape: &KvShape, image: &KvImage) -> Result<Self::KvCache>;

    /// A copy that later steps do not change.
    fn kv_clone(&self, shape: &KvShape, cache: &Self::KvCache) -> Result<Self::KvCache> {
        self.kv_load(shape, &self.kv_save(cache)?)
    }

    /// A state of zeros.
    fn recurrent(&self, shape: &GdnShape) -> Result<Self::Recurrent>;

    /// A copy that later steps do not change.
    fn recurrent_clone(&self, state: &Self::Recurrent) -> Result<Self::Recurrent>;

    /// Waits, and copies a state to the host.
    fn recurrent_save(&self, state: &Self::Recurrent) -> Result<RecurrentImage>;

    /// A state from its image.
    fn recurrent_load(&self, shape: &GdnShape, image: &RecurrentImage) -> Result<Self::Recurrent>;
}
