//! Random operations on a pool against a plain model of it: every sequence a list of its tokens.

use std::collections::HashMap;

use super::tables::{BLOCK, Copies, Group, Layout, Slot, Table, Tables};

/// A small generator (splitmix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// What a device would hold: a token for every place of every block, a sum for every state row.
#[derive(Default)]
struct Memory {
    blocks: HashMap<(usize, u32), [u64; BLOCK]>,
    rows: HashMap<u32, u64>,
}

impl Memory {
    fn copy(&mut self, copies: &Copies) {
        for (group, from, to) in &copies.blocks {
            // Nothing was written to one of which a loaded image had no position.
            let block = self.blocks.get(&(*group, *from)).copied().unwrap_or([0; BLOCK]);
            self.blocks.insert((*group, *to), block);
        }
        for (from, to) in &copies.rows {
            let row = self.rows[from];
            self.rows.insert(*to, row);
        }
    }

    /// A step: writes tokens behind those that a sequence has.
    fn append(&mut self, tables: &mut Tables, slot: Slot, tokens: &[u64], groups: usize) {
        for group in 0..groups {
            let table = tables.table(slot, group).expect("a sequence");
            for (i, token) in tokens.iter().enumerate() {
                let at = tables.len(slot) + i;
                let block = table.block(at);
                self.blocks.entry((group, block)).or_insert([0; BLOCK])[at % BLOCK] = *token;
            }
        }
        if let Some(row) = tables.row(slot) {
            tokens.iter().for_each(|token| *self.rows.entry(row).or_default() += token);
        }
        tables.advance(slot, tokens.len());
    }
}

fn layouts() -> [Layout; 4] {
    let group = |window, block_bytes| Group { window, block_bytes, most_blocks: 40 };
    [
        Layout { groups: vec![group(None, 10)], state_bytes: 0, most_rows: 0, budget: 400 },
        Layout {
            groups: vec![group(None, 10), group(Some(100), 3)],
            state_bytes: 0,
            most_rows: 0,
            budget: 500,
        },
        Layout { groups: vec![group(None, 7)], state_bytes: 20, most_rows: 9, budget: 600 },
        Layout {
            groups: vec![group(Some(1), 5), group(Some(64), 5)],
            state_bytes: 0,
            most_rows: 0,
            budget: 90,
        },
    ]
}

struct Checker {
    layout: Layout,
    tables: Tables,
    memory: Memory,
    /// The tokens of every sequence.
    model: Vec<(Slot, Vec<u64>)>,
    next: u64,
}

impl Checker {
    fn new(layout: Layout) -> Self {
        let tables = Tables::new(layout.clone());
        Self { layout, tables, memory: Memory::default(), model: Vec::new(), next: 1 }
    }

    fn tokens(&mut self, n: usize) -> Vec<u64> {
        self.next += n as u64;
        (self.next - n as u64..self.next).collect()
    }

    fn create(&mut self) {
        if let Some(slot) = self.tables.create() {
            if let Some(row) = self.tables.row(slot) {
                self.memory.rows.insert(row, 0);
            }
            self.model.push((slot, Vec::new()));
        }
    }

    fn step(&mut self, i: usize, tokens: &[u64]) -> bool {
        let (slot, used) = (self.model[i].0, self.tables.used());
        let Some(copies) = self.tables.reserve(slot, tokens.len()) else {
            assert_eq!(self.tables.used(), used, "a refusal changes nothing");
            return false;
        };
        self.memory.copy(&copies);
        self.memory.append(&mut self.tables, slot, tokens, self.layout.groups.len());
        self.model[i].1.extend_from_slice(tokens);
        true
    }

    /// A random operation.
    fn operate(&mut self, rng: &mut Rng) {
        if self.model.is_empty() {
            return self.create();
        }
        let i = rng.below(self.model.len());
        let (slot, len) = (self.model[i].0, self.model[i].1.len());
        match rng.below(10) {
            0 => self.create(),
            1..=4 => {
                let n = [1, 1, 2, 63, 64, 65, 200][rng.below(7)];
                let tokens = self.tokens(n);
                self.step(i, &tokens);
            }
            5 => {
                let at = if rng.below(2) == 0 { len } else { rng.below(len + 1) };
                let reaches = self.tables.reaches(slot, at);
                if let Some((forked, copies)) = self.tables.fork(slot, at) {
                    assert!(reaches, "a fork where nobody can go back");
                    self.memory.copy(&copies);
                    let tokens = self.model[i].1[..at].to_vec();
                    self.model.push((forked, tokens));
                }
            }
            6 => {
                let at = rng.below(len + 1);
                if self.tables.truncate(slot, at) {
                    self.model[i].1.truncate(at);
                }
            }
            7 => {
                // Rejected drafts: written, then taken back.
                let tokens = self.tokens(3);
                if self.step(i, &tokens) {
                    let taken_back = self.tables.truncate(slot, len);
                    assert_eq!(taken_back, self.tables.row(slot).is_none(), "only a state cannot go back");
                    if taken_back {
                        self.model[i].1.truncate(len);
                    }
                }
            }
            8 => {
                // Saved and loaded: what the next token sees, in a slot of its own.
                let firsts: Vec<usize> = (self.layout.groups.iter().enumerate())
                    .map(|(group, own)| {
                        let table = self.tables.table(slot, group).expect("a sequence");
                        own.first_seen(len).max(table.first())
                    })
                    .collect();
                if let Some(loaded) = self.tables.restore(len, &firsts) {
                    for (group, first) in firsts.iter().enumerate() {
                        let table = self.tables.table(loaded, group).expect("a sequence");
                        for at in *first..len {
                            let block = self.memory.blocks.entry((group, table.block(at)));
                            block.or_insert([0; BLOCK])[at % BLOCK] = self.model[i].1[at];
                        }
                    }
                    if let Some(row) = self.tables.row(loaded) {
                        self.memory.rows.insert(row, self.model[i].1.iter().sum());
                    }
                    let tokens = self.model[i].1.clone();
                    self.model.push((loaded, tokens));
                }
            }
            _ => {
                self.tables.release(slot);
                self.model.swap_remove(i);
            }
        }
    }

    /// Every sequence reads back what it has seen, and memory is what is in use, each block once.
    fn check(&self) {
        let mut used = 0;
        for (group, own) in self.layout.groups.iter().enumerate() {
            let mut held: Vec<u32> = Vec::new();
            for (slot, tokens) in &self.model {
                assert_eq!(self.tables.len(*slot), tokens.len());
                let table = self.tables.table(*slot, group).expect("a sequence");
                held.extend(&table.held);
                // What the next token sees.
                for at in own.first_seen(tokens.len())..tokens.len() {
                    let block = self.memory.blocks[&(group, table.block(at))];
                    assert_eq!(block[at % BLOCK], tokens[at], "position {at} of {}", tokens.len());
                }
                let Table { passed, held, .. } = table;
                assert_eq!(passed + held.len(), tokens.len().div_ceil(BLOCK).max(*passed));
            }
            held.sort_unstable();
            held.dedup();
            used += held.len() as u64 * own.block_bytes;
            assert!(held.len() <= own.most_blocks as usize);
        }
        for (slot, tokens) in &self.model {
            if let Some(row) = self.tables.row(*slot) {
                assert_eq!(self.memory.rows[&row], tokens.iter().sum::<u64>());
                used += self.layout.state_bytes;
            }
        }
        assert_eq!(self.tables.used(), used);
        assert!(used <= self.layout.budget);
        assert!(self.layout.state_bytes == 0 || self.model.len() <= self.layout.most_rows as usize);
    }
}

#[test]
fn random_operations_find_no_difference_from_a_plain_model() {
    for seed in 0..1000 {
        let layouts = layouts();
        let mut checker = Checker::new(layouts[seed % layouts.len()].clone());
        let mut rng = Rng(seed as u64);
        for _ in 0..60 {
            checker.operate(&mut rng);
            checker.check();
        }
        let slots: Vec<Slot> = checker.model.drain(..).map(|(slot, _)| slot).collect();
        slots.into_iter().for_each(|slot| checker.tables.release(slot));
        assert_eq!(checker.tables.used(), 0, "seed {seed}");
    }
}

#[test]
fn a_prefix_shared_by_many_is_stored_once() {
    let group = Group { window: None, block_bytes: 1 << 20, most_blocks: 1000 };
    let layout = Layout { groups: vec![group], state_bytes: 0, most_rows: 0, budget: 1 << 40 };
    let mut tables = Tables::new(layout);
    let first = tables.create().expect("a slot");
    tables.reserve(first, 1024).expect("room");
    tables.advance(first, 1024);
    let prefix = tables.used();
    let forks: Vec<_> = (0..31).map(|_| tables.fork(first, 1024).expect("a fork")).collect();
    println!("32 sequences of {prefix} bytes: {} bytes", tables.used());
    assert_eq!(tables.used(), prefix);
    assert!(forks.iter().all(|(_, copies)| *copies == Copies::default()));
    // Each goes on in a block of its own.
    for (slot, _) in &forks {
        assert_eq!(tables.reserve(*slot, 1), Some(Copies::default()));
    }
    assert_eq!(tables.used(), prefix + (31 << 20));
}

#[test]
fn a_shared_block_is_copied_when_it_is_written() {
    let group = Group { window: None, block_bytes: 1, most_blocks: 9 };
    let mut tables = Tables::new(Layout { groups: vec![group], state_bytes: 0, most_rows: 0, budget: 3 });
    let first = tables.create().expect("a slot");
    tables.reserve(first, 70).expect("room");
    tables.advance(first, 70);
    let (second, _) = tables.fork(first, 66).expect("a fork");
    let last = |tables: &Tables, slot| tables.table(slot, 0).expect("a sequence").held[1];
    let shared = last(&tables, first);
    let copies = tables.reserve(second, 1).expect("room for a copy");
    assert_eq!(copies.blocks, [(0, shared, last(&tables, second))]);
    // Now nobody shares it.
    assert_eq!(tables.reserve(first, 1), Some(Copies::default()));
    let (third, _) = tables.fork(first, 66).expect("a fork");
    assert_eq!(tables.reserve(third, 1), None, "no room for another copy");
    assert_eq!(tables.used(), 3);
}
