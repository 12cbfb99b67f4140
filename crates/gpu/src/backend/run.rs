//! Caches, and how steps run.

use ::backend::{
    Batch, Cache, Error, GdnShape, Handle, KvImage, KvShape, OperationTime, RecurrentImage, Result, Run,
    Span, check,
};

use crate::{Chosen, Gpu, KvCache, Numerics, Positions, Recorded, Recurrent, Tensor};

impl Cache for Gpu {
    fn kv_cache(&self, shape: &KvShape) -> Result<KvCache> {
        check::kv_shape(shape)?;
        Ok(KvCache::new(shape))
    }

    fn kv_truncate(&self, cache: &mut KvCache, len: usize) -> Result<bool> {
        Ok(cache.truncate(len))
    }

    fn kv_save(&self, cache: &KvCache) -> Result<KvImage> {
        self.image(cache)
    }

    fn kv_load(&self, shape: &KvShape, image: &KvImage) -> Result<KvCache> {
        let tokens = check::kv_image(shape, image)?;
        self.cache_of(shape, image, tokens)
    }

    fn recurrent(&self, shape: &GdnShape) -> Result<Recurrent> {
        check::gdn_shape("recurrent", shape)?;
        self.zero_state(shape)
    }

    fn recurrent_clone(&self, state: &Recurrent) -> Result<Recurrent> {
        self.copy_state(state)
    }

    fn recurrent_save(&self, state: &Recurrent) -> Result<RecurrentImage> {
        self.state_image(state)
    }

    fn recurrent_load(&self, shape: &GdnShape, image: &RecurrentImage) -> Result<Recurrent> {
        check::recurrent_image(shape, image)?;
        self.state_of(shape, image)
    }
}

impl Run for Gpu {
    type Recorded = Recorded;
    type Chosen = Chosen;

    fn description(&self) -> String {
        let adapter = self.adapter();
        let software = if adapter.software { ", software" } else { "" };
        let numerics = match self.numerics() {
            Numerics::Fast => "fast",
            Numerics::Exact => "exact",
        };
        format!("GPU {}, {}{software}, {numerics} numerics", adapter.name, adapter.api)
    }

    fn take_profile(&self) -> Vec<OperationTime> {
        self.recorder.take_profile()
    }

    fn background(&self, task: Box<dyn FnOnce() + Send>) {
        self.aside.push(task);
    }

    fn faster_alone(&self) -> usize {
        // Measured on an H200 (docs/performance.md). Experts that are read from disk are read once for all.
        if self.device.chains() && self.device.rounds && self.stream.is_none() { 16 } else { 1 }
    }

    /// Experts that are read from disk are waited for in the middle of a step.
    fn records_ahead(&self) -> bool {
        self.stream.is_none() && !self.recorder.is_timed()
    }

    fn record<T, E: From<Error>>(
        &self,
        step: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<(T, Recorded), E> {
        self.pool.set_apart();
        let captured = self.recorder.capture(step);
        let shelf = self.pool.rejoin();
        let (result, segments) = captured?;
        Ok((result, Recorded { segments, shelf }))
    }

    fn start(&self, mut recorded: Recorded, batch: &Batch<Self>, token: u32) -> Result<()> {
        recorded.replace(&batch.data().tokens, &token.to_ne_bytes())?;
        self.start_recorded(recorded);
        Ok(())
    }

    fn choose(&self, logits: &Tensor) -> Result<Chosen> {
        check::equal("choose", "the rows of logits", logits.shape().rows, 1)?;
        self.choose_largest(logits)
    }

    fn prepare_chosen(&self, chosen: &Chosen, span: Span) -> Result<Positions> {
        self.positions_of(chosen.token().clone(), &[span])
    }

    fn read_chosen(&self, chosen: Chosen) -> Result<(u32, f32)> {
        self.chosen(chosen)
    }
}
