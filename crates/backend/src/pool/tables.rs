//! Bookkeeping of a cache pool: which blocks and state rows each sequence holds.
//!
//! KV caches lie in blocks of [`BLOCK`] tokens. Layers that see the same window form a [`Group`]
//! and share block tables: block 7 of a group is the same place in the slab of each of its layers.
//! Recurrent states are rows: one for each sequence, in the slab of each recurrent layer. Blocks
//! are shared by reference count, so that a fork costs a state row and nothing else; a shared block
//! is copied when a sequence first writes to it. A window's blocks are freed as it moves on.
//!
//! Nothing here touches a device. What a device has to copy comes back as [`Copies`], to be made
//! before the sequence's next step.

use super::Places;
use super::blocks::Blocks;

/// Tokens of a block.
pub const BLOCK: usize = 64;

/// Tokens that a window can always go back by: draft tokens that may be rejected.
pub const RETURN: usize = 16;

/// Layers whose caches see the same window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// How many of the last tokens, its own included, a query sees; all when absent.
    pub window: Option<usize>,
    /// Bytes of a block, in all layers of the group together.
    pub block_bytes: u64,
    /// Most blocks that can be reached.
    pub most_blocks: u32,
}

/// What a pool holds of each sequence, and how much memory it may take.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Groups of layers with keys and values.
    pub groups: Vec<Group>,
    /// Bytes of a state row, in all recurrent layers together; 0 for models that have none.
    pub state_bytes: u64,
    /// Most state rows that can be reached.
    pub most_rows: u32,
    /// Bytes that blocks and rows may take together.
    pub budget: u64,
}

impl Layout {
    /// Bytes of a sequence of so many tokens that runs in steps of at most `step`.
    pub fn bytes(&self, tokens: usize, step: usize) -> u64 {
        let blocks = self.groups.iter().map(|group| group.blocks(tokens, step) as u64 * group.block_bytes);
        blocks.sum::<u64>() + self.state_bytes
    }

    /// Bytes of so many places.
    pub fn bytes_of(&self, places: &Places) -> u64 {
        let blocks =
            self.groups.iter().zip(&places.blocks).map(|(group, n)| u64::from(*n) * group.block_bytes);
        blocks.sum::<u64>() + u64::from(places.rows) * self.state_bytes
    }

    /// Whether there is room for such a sequence.
    pub fn holds(&self, tokens: usize, step: usize) -> bool {
        let reached = |group: &Group| group.blocks(tokens, step) <= group.most_blocks as usize;
        self.bytes(tokens, step) <= self.budget && self.groups.iter().all(reached)
    }
}

/// One sequence's place in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u32);

impl Slot {
    /// A small number: the lowest that no other sequence has.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a device has to copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Group, block to read, block to write.
    pub blocks: Vec<(usize, u32, u32)>,
    /// State row to read, state row to write.
    pub rows: Vec<(u32, u32)>,
}

/// Blocks of one group that a sequence holds: those from the first that its window needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Blocks freed because the window has passed them.
    pub passed: usize,
    /// The blocks behind these.
    pub held: Vec<u32>,
    /// The oldest position that was written: behind the first of a held block only where a shorter
    /// image was loaded.
    first: usize,
}

impl Table {
    /// The block that a position lies in, at row `position % BLOCK`.
    pub fn block(&self, position: usize) -> u32 {
        self.held[position / BLOCK - self.passed]
    }

    /// The oldest position that can be read.
    pub fn first(&self) -> usize {
        self.first.max(self.passed * BLOCK)
    }
}

#[derive(Clone, Debug)]
struct Sequence {
    len: usize,
    tables: Vec<Table>,
    row: Option<u32>,
}

/// The tables of all sequences.
#[derive(Debug)]
pub struct Tables {
    layout: Layout,
    /// For each group.
    blocks: Vec<Blocks>,
    rows: Blocks,
    sequences: Vec<Option<Sequence>>,
    used: u64,
}

impl Group {
    /// Blocks of a sequence of so many tokens that runs in steps of at most `step`.
    fn blocks(&self, tokens: usize, step: usize) -> usize {
        // A window may begin at the end of a block.
        let seen = |window: usize| window.saturating_add(step).saturating_add(BLOCK + RETURN);
        self.window.map_or(tokens, |window| tokens.min(seen(window))).div_ceil(BLOCK)
    }

    /// The first position that the token at `position` sees.
    pub fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window.max(1)))
    }

    /// Blocks that a sequence of so many tokens has no more use for.
    fn passed(&self, len: usize) -> usize {
        self.first_seen(len.saturating_sub(RETURN)) / BLOCK
    }
}

impl Tables {
    /// Tables of no sequence.
    pub fn new(layout: Layout) -> Self {
        let blocks = layout.groups.iter().map(|_| Blocks::default()).collect();
        Self { layout, blocks, rows: Blocks::default(), sequences: Vec::new(), used: 0 }
    }

    /// Bytes that all blocks and rows in use take, each counted once.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// What a pool holds, and how much memory it may take.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Changes how much memory blocks and rows may take; what is in use stays.
    pub fn set_budget(&mut self, bytes: u64) {
        self.layout.budget = bytes;
    }

    /// Bytes that these sequences take, what they share counted once.
    pub fn bytes_of(&self, slots: impl IntoIterator<Item = Slot>) -> u64 {
        let mut held: Vec<Vec<u32>> = vec![Vec::new(); self.layout.groups.len()];
        let mut bytes = 0;
        for sequence in slots.into_iter().filter_map(|slot| self.sequence(slot)) {
            bytes += sequence.row.map_or(0, |_| self.layout.state_bytes);
            held.iter_mut().zip(&sequence.tables).for_each(|(held, table)| held.extend(&table.held));
        }
        for (held, group) in held.iter_mut().zip(&self.layout.groups) {
            held.sort_unstable();
            held.dedup();
            bytes += held.len() as u64 * group.block_bytes;
        }
        bytes
    }

    /// Blocks that have been in use at once, of each group: as many as a slab needs.
    pub fn slab_blocks(&self, group: usize) -> u32 {
        self.blocks[group].most()
    }

    /// State rows that have been in use at once: as many as a slab needs.
    pub fn slab_rows(&self) -> u32 {
        self.rows.most()
    }

    /// A new sequence that has seen nothing; `None` where memory for its state is missing. The
    /// device clears its row.
    pub fn create(&mut self) -> Option<Slot> {
        let row = match self.layout.state_bytes {
            0 => None,
            _ if !self.has_row() => return None,
            bytes => {
                self.used += bytes;
                Some(self.rows.take())
            }
        };
        let tables = vec![Table::default(); self.layout.groups.len()];
        Some(self.insert(Sequence { len: 0, tables, row }))
    }

    /// Whether there is room for another state row.
    fn has_row(&self) -> bool {
        self.used + self.layout.state_bytes <= self.layout.budget
            && self.rows.in_use() < self.layout.most_rows
    }

    fn insert(&mut self, sequence: Sequence) -> Slot {
        let free = self.sequences.iter().position(Option::is_none);
        let slot = free.unwrap_or_else(|| {
            self.sequences.push(None);
            self.sequences.len() - 1
        });
        self.sequences[slot] = Some(sequence);
        Slot(slot as u32)
    }

    fn sequence(&self, slot: Slot) -> Option<&Sequence> {
        self.sequences.get(slot.0 as usize)?.as_ref()
    }

    /// Tokens that a sequence has seen; 0 for a slot that was released.
    pub fn len(&self, slot: Slot) -> usize {
        self.sequence(slot).map_or(0, |sequence| sequence.len)
    }

    /// The state row of a sequence.
    pub fn row(&self, slot: Slot) -> Option<u32> {
        self.sequence(slot)?.row
    }

    /// The blocks of a group that a sequence holds.
    pub fn table(&self, slot: Slot, group: usize) -> Option<&Table> {
        self.sequence(slot)?.tables.get(group)
    }

    /// The same, where it has room up to position `end`.
    pub fn room(&self, slot: Slot, group: usize, end: usize) -> Option<&Table> {
        self.table(slot, group).filter(|table| end <= (table.passed + table.held.len()) * BLOCK)
    }

    /// A sequence of `len` tokens, of which each group holds those from the position in `firsts` on
    /// or from where its window begins. `None`, with nothing changed, where memory is missing.
    pub fn restore(&mut self, len: usize, firsts: &[usize]) -> Option<Slot> {
        let slot = self.create()?;
        for ((group, first), table) in
            self.layout.groups.iter().zip(firsts).zip(&mut self.sequences[slot.index()].as_mut()?.tables)
        {
            table.passed = group.passed(len);
            table.first = *first;
        }
        // Room for all of it is what a sequence without a token reserves.
        match self.reserve(slot, len) {
            Some(_) => self.advance(slot, len),
            None => {
                self.release(slot);
                return None;
            }
        }
        Some(slot)
    }

    /// Makes room for `tokens` more tokens and copies what is shared and will be written. `None`,
    /// with nothing changed, where memory is missing: somebody has to be preempted then.
    pub fn reserve(&mut self, slot: Slot, tokens: usize) -> Option<Copies> {
        let sequence = self.sequence(slot)?;
        let (first, end) = (sequence.len, sequence.len + tokens);
        let mut needed = 0;
        for ((group, table), blocks) in self.layout.groups.iter().zip(&sequence.tables).zip(&self.blocks) {
            let more = end.div_ceil(BLOCK).saturating_sub(table.passed + table.held.len());
            let shared = written(table, first, end).filter(|i| blocks.count(table.held[*i]) > 1);
            let new = more + shared.count();
            if blocks.in_use() as usize + new > group.most_blocks as usize {
                return None;
            }
            needed += new as u64 * group.block_bytes;
        }
        if self.used + needed > self.layout.budget {
            return None;
        }
        self.used += needed;
        let mut copies = Copies::default();
        let sequence = self.sequences[slot.0 as usize].as_mut()?;
        for (group, (table, blocks)) in sequence.tables.iter_mut().zip(&mut self.blocks).enumerate() {
            for i in written(table, first, end) {
                let shared = table.held[i];
                if blocks.count(shared) > 1 {
                    let own = blocks.take();
                    blocks.release(shared);
                    table.held[i] = own;
                    copies.blocks.push((group, shared, own));
                }
            }
            while (table.passed + table.held.len()) * BLOCK < end {
                table.held.push(blocks.take());
            }
        }
        Some(copies)
    }

    /// Counts `tokens` that a step has written; room for them was reserved. Frees what a window has
    /// passed, and what was reserved beyond them.
    pub fn advance(&mut self, slot: Slot, tokens: usize) {
        let Some(Some(sequence)) = self.sequences.get_mut(slot.0 as usize) else { return };
        sequence.len += tokens;
        for ((group, table), blocks) in
            self.layout.groups.iter().zip(&mut sequence.tables).zip(&mut self.blocks)
        {
            let passed = group.passed(sequence.len);
            let gone = passed.saturating_sub(table.passed).min(table.held.len());
            let kept = sequence.len.div_ceil(BLOCK).saturating_sub(table.passed + gone);
            let tail = table.held.split_off((gone + kept).min(table.held.len()));
            table.passed += gone;
            let freed = table.held.drain(..gone).chain(tail).filter(|block| blocks.release(*block));
            self.used -= freed.count() as u64 * group.block_bytes;
        }
    }

    /// Another sequence that has seen the first `len` tokens of `from`: it shares their blocks.
    /// `None`, with nothing changed, where `from` cannot go back that far or memory for a state is
    /// missing.
    pub fn fork(&mut self, from: Slot, len: usize) -> Option<(Slot, Copies)> {
        if !self.reaches(from, len) {
            return None;
        }
        let sequence = self.sequence(from)?.clone();
        let mut copies = Copies::default();
        let row = match sequence.row {
            None => None,
            Some(_) if !self.has_row() => return None,
            Some(row) => {
                self.used += self.layout.state_bytes;
                let own = self.rows.take();
                copies.rows.push((row, own));
                Some(own)
            }
        };
        let share = |(mut table, blocks): (Table, &mut Blocks)| {
            table.held.truncate(len.div_ceil(BLOCK).saturating_sub(table.passed));
            table.held.iter().for_each(|block| blocks.share(*block));
            table
        };
        let tables = sequence.tables.into_iter().zip(&mut self.blocks).map(share).collect();
        Some((self.insert(Sequence { len, tables, row }), copies))
    }

    /// Bytes that may still be taken.
    pub fn free(&self) -> u64 {
        self.layout.budget.saturating_sub(self.used)
    }

    /// Whether a sequence can go back to its first `len` tokens: a recurrent state cannot, nor can
    /// a window whose blocks before them are gone.
    pub fn reaches(&self, slot: Slot, len: usize) -> bool {
        let Some(sequence) = self.sequence(slot) else { return false };
        let recurrent = sequence.row.is_some() && len != sequence.len;
        let mut groups = self.layout.groups.iter().zip(&sequence.tables);
        len <= sequence.len
            && !recurrent
            && groups.all(|(group, table)| group.first_seen(len) >= table.first())
    }

    /// Forgets all but the first `len` tokens. Returns false, with nothing changed, where the
    /// sequence cannot [go back](Self::reaches) that far.
    pub fn truncate(&mut self, slot: Slot, len: usize) -> bool {
        if !self.reaches(slot, len) {
            return false;
        }
        let Some(Some(sequence)) = self.sequences.get_mut(slot.0 as usize) else { return false };
        sequence.len = len;
        for ((group, table), blocks) in
            self.layout.groups.iter().zip(&mut sequence.tables).zip(&mut self.blocks)
        {
            let kept = len.div_ceil(BLOCK).saturating_sub(table.passed);
            let tail = table.held.split_off(kept.min(table.held.len()));
            let freed = tail.into_iter().filter(|block| blocks.release(*block)).count();
            self.used -= freed as u64 * group.block_bytes;
        }
        true
    }

    /// Gives a sequence up; what it alone holds is free again.
    pub fn release(&mut self, slot: Slot) {
        let Some(sequence) = self.sequences.get_mut(slot.0 as usize).and_then(Option::take) else { return };
        for ((group, table), blocks) in self.layout.groups.iter().zip(sequence.tables).zip(&mut self.blocks) {
            let freed = table.held.into_iter().filter(|block| blocks.release(*block)).count();
            self.used -= freed as u64 * group.block_bytes;
        }
        if let Some(row) = sequence.row {
            self.rows.release(row);
            self.used -= self.layout.state_bytes;
        }
    }
}

/// Places in a table of the blocks that positions `first..end` lie in, as far as they are held.
fn written(table: &Table, first: usize, end: usize) -> std::ops::Range<usize> {
    let at = |block: usize| block.saturating_sub(table.passed).min(table.held.len());
    if first == end {
        return 0..0;
    }
    at(first / BLOCK)..at(end.div_ceil(BLOCK))
}
