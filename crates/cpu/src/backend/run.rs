//! Caches, and how steps run.

use ::backend::{Cache, GdnShape, KvImage, KvShape, OperationTime, RecurrentImage, Result, Run, check};

use crate::profile::Profile;
use crate::{Cpu, KvCache, Numerics, Recurrent};

impl Cache for Cpu {
    fn kv_cache(&self, shape: &KvShape) -> Result<KvCache> {
        check::kv_shape(shape)?;
        Ok(KvCache::new(shape, self.machine.numerics))
    }

    fn kv_truncate(&self, cache: &mut KvCache, len: usize) -> Result<bool> {
        Ok(cache.truncate(len))
    }

    fn kv_save(&self, cache: &KvCache) -> Result<KvImage> {
        Ok(cache.image())
    }

    fn kv_load(&self, shape: &KvShape, image: &KvImage) -> Result<KvCache> {
        let tokens = check::kv_image(shape, image)?;
        KvCache::from_image(shape, self.machine.numerics, image, tokens)
    }

    fn recurrent(&self, shape: &GdnShape) -> Result<Recurrent> {
        check::gdn_shape("recurrent", shape)?;
        Ok(Recurrent::new(&self.machine.arena, shape))
    }

    fn recurrent_clone(&self, state: &Recurrent) -> Result<Recurrent> {
        Ok(state.duplicate())
    }

    fn recurrent_save(&self, state: &Recurrent) -> Result<RecurrentImage> {
        Ok(state.image())
    }

    fn recurrent_load(&self, shape: &GdnShape, image: &RecurrentImage) -> Result<Recurrent> {
        check::recurrent_image(shape, image)?;
        Ok(Recurrent::from_image(&self.machine.arena, shape, image))
    }
}

impl Run for Cpu {
    type Recorded = ();
    type Chosen = ();

    fn description(&self) -> String {
        let threads = self.machine.pool.threads();
        let numerics = match self.machine.numerics {
            Numerics::Fast => "fast",
            Numerics::Exact => "exact",
        };
        format!("CPU, {threads} thread{}, {numerics} numerics", if threads == 1 { "" } else { "s" })
    }

    fn take_profile(&self) -> Vec<OperationTime> {
        self.profile.as_ref().map(Profile::take).unwrap_or_default()
    }

    fn parallel_for(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        self.machine.pool.run(count, task);
    }

    fn background(&self, task: Box<dyn FnOnce() + Send>) {
        self.machine.pool.beside(task);
    }
}
