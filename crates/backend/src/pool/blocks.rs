//! Numbered places of a slab, with reference counts.

/// Which places are in use, and how often.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    counts: Vec<u32>,
    /// The last freed is taken first: its memory is still warm.
    free: Vec<u32>,
}

impl Blocks {
    /// A place that nobody uses.
    pub fn take(&mut self) -> u32 {
        let block = self.free.pop().unwrap_or_else(|| {
            self.counts.push(0);
            (self.counts.len() - 1) as u32
        });
        self.counts[block as usize] = 1;
        block
    }

    /// How often a place is used.
    pub fn count(&self, block: u32) -> u32 {
        self.counts[block as usize]
    }

    /// One user more.
    pub fn share(&mut self, block: u32) {
        self.counts[block as usize] += 1;
    }

    /// One user less; whether the place is free now.
    pub fn release(&mut self, block: u32) -> bool {
        let count = &mut self.counts[block as usize];
        *count -= 1;
        let free = *count == 0;
        if free {
            self.free.push(block);
        }
        free
    }

    /// Places in use.
    pub fn in_use(&self) -> u32 {
        (self.counts.len() - self.free.len()) as u32
    }

    /// Places that have been in use at once.
    pub fn most(&self) -> u32 {
        self.counts.len() as u32
    }
}
