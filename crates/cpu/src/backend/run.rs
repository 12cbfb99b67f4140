//! Memory of caches, and how steps run.

use std::ops::Range;

use ::backend::pool::{Copies, LayerShape, Layers, Places, Table};
use ::backend::sampling::counting;
use ::backend::{
    Cache, Choice, Handle, KvImage, OperationTime, RecurrentImage, Result, Run, Sampled, check, choose,
};

use crate::profile::Profile;
use crate::{Cpu, Numerics, Slabs, Tensor, slabs};

impl Cache for Cpu {
    fn place_bytes(&self, shape: &LayerShape) -> u64 {
        slabs::place_bytes(shape, self.machine.numerics)
    }

    fn slabs(&self, layers: &Layers) -> Result<Slabs> {
        Ok(Slabs::new(layers, self.machine.numerics))
    }

    fn grow(&self, slabs: &mut Slabs, places: &Places) -> Result<()> {
        let _time = self.time("grow");
        slabs.grow(&self.machine.pool, places)
    }

    fn copy(&self, slabs: &mut Slabs, copies: &Copies) -> Result<()> {
        let _time = self.time("copy");
        slabs.copy(&self.machine.pool, copies)
    }

    fn clear(&self, slabs: &mut Slabs, row: u32) -> Result<()> {
        slabs.clear(&self.machine.pool, row)
    }

    fn save_kv(
        &self,
        slabs: &Slabs,
        layer: usize,
        table: &Table,
        positions: Range<usize>,
    ) -> Result<KvImage> {
        Ok(slabs.kv(layer)?.save(table, positions))
    }

    fn load_kv(&self, slabs: &mut Slabs, layer: usize, table: &Table, image: &KvImage) -> Result<()> {
        let kv = slabs.kv_mut(layer)?;
        check::kv_image(kv.shape(), image)?;
        kv.load(table, image);
        Ok(())
    }

    fn save_state(&self, slabs: &Slabs, layer: usize, row: u32) -> Result<RecurrentImage> {
        Ok(slabs.recurrent(layer)?.save(row))
    }

    fn load_state(&self, slabs: &mut Slabs, layer: usize, row: u32, image: &RecurrentImage) -> Result<()> {
        let recurrent = slabs.recurrent_mut(layer)?;
        check::recurrent_image(&recurrent.shape(), image)?;
        recurrent.load(row, image);
        Ok(())
    }
}

impl Run for Cpu {
    type Ticket = Vec<Sampled>;

    fn description(&self) -> String {
        let threads = self.machine.pool.threads();
        let numerics = match self.machine.numerics {
            Numerics::Fast => "fast",
            Numerics::Exact => "exact",
        };
        format!("CPU, {threads} thread{}, {numerics} numerics", if threads == 1 { "" } else { "s" })
    }

    /// Chooses at once: what was called has been computed.
    fn submit(
        &self,
        logits: Option<&Tensor>,
        choices: &[Choice<'_>],
        slabs: &mut Slabs,
    ) -> Result<Vec<Sampled>> {
        let Some(logits) = logits else { return Ok(Vec::new()) };
        let _time = self.time("choose");
        check::equal("submit", "the number of choices", choices.len(), logits.shape().rows)?;
        let last = |choice: &Choice<'_>| match choice.slot.filter(|_| choice.counts_last) {
            Some(slot) => slabs.last(slot).map(Some),
            None => Ok(None),
        };
        let mut rows = choices.iter().map(|choice| Ok((last(choice)?, None))).collect::<Result<Vec<_>>>()?;
        self.machine.pool.pieces(&mut rows, 1, |t, row| {
            for (last, sampled) in row {
                let adjusted = last.map(|last| counting(choices[t].adjusted, last));
                let adjusted = adjusted.as_deref().unwrap_or(choices[t].adjusted);
                *sampled = Some(choose(logits.row(t), &Choice { adjusted, ..choices[t] }));
            }
        });
        let sampled: Vec<Sampled> = rows.into_iter().filter_map(|(_, sampled)| sampled).collect();
        for (choice, sampled) in choices.iter().zip(&sampled) {
            if let Some(slot) = choice.slot {
                slabs.remember(slot, sampled.token);
            }
        }
        Ok(sampled)
    }

    fn collect(&self, ticket: Vec<Sampled>) -> Result<Vec<Sampled>> {
        Ok(ticket)
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
