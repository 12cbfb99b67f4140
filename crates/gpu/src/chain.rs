//! Dispatches that wait for each other by themselves.
//!
//! Behind a barrier a kernel starts when the one before has finished, and only then asks for its weights: on an H200 a token spends more time with such beginnings and
//! ends than with all its bytes. In a chain there is no barrier. Kernels start as there is room, ask for what does not depend on others, and then wait for the ones they
//! depend on, whose workgroups count themselves when they have finished (`shaders/pieces/chain.wgsl`).
//!
//! That takes a device that starts all workgroups of a dispatch before any of the next: then whoever is waited for is running. It also takes care with the caches
//! near the processors, which only a barrier clears: a chain ends where it would write what it has touched before, so that nobody can have anything old of it.

use std::collections::HashMap;

use crate::commands::PER_SUBMISSION;
use crate::kernel::Access;
use crate::pipelines::Pipeline;
use crate::pool::Buffer;

/// How a dispatch follows those before it, and its workgroups if it counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Behind a barrier, if it touches what another writes.
    Plain,
    /// Behind a barrier, as the first of a chain.
    First(u32),
    /// Behind nothing: it waits for these two by itself, numbered as in the submission. It may be one twice, or itself, which waits for nothing.
    Next(u32, [usize; 2]),
}

/// Words that a kernel in a chain takes: where to look, and for what, twice; where it counts its own workgroups; and its patience.
pub(crate) const LINK_WORDS: usize = 6;

/// How often a kernel looks before it gives up: for some seconds, where others take microseconds. Software lets no loop go on for so long.
pub(crate) fn patience(software: bool) -> u32 {
    if software { 1 << 14 } else { 1 << 22 }
}

/// Dispatches of a submission.
#[derive(Clone, Copy, Default)]
struct Set([u64; PER_SUBMISSION.div_ceil(64)]);

impl Set {
    fn add(&mut self, dispatch: usize) {
        self.0[dispatch / 64] |= 1 << (dispatch % 64);
    }

    fn add_all(&mut self, others: &Self) {
        self.0.iter_mut().zip(others.0).for_each(|(own, others)| *own |= others);
    }

    fn has(&self, dispatch: usize) -> bool {
        self.0[dispatch / 64] >> (dispatch % 64) & 1 == 1
    }
}

/// What a chain has done with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touch {
    Read,
    /// By this dispatch.
    Written(usize),
    /// Read and written by one.
    Changed,
}

/// The dispatches of a submission, and what the chain that goes on has touched.
#[derive(Default)]
pub(crate) struct Chain {
    links: Vec<Link>,
    touched: HashMap<u64, Touch>,
    /// For each dispatch, those of its chain that have finished when it has.
    finished: Vec<Set>,
}

impl Chain {
    /// Adds a dispatch of so many workgroups. If its kernel waits by itself, it goes on with the chain where it can, unless it comes `apart`.
    pub fn add(&mut self, pipeline: &Pipeline, buffers: &[&Buffer], workgroups: u32, apart: bool) {
        if !pipeline.chains {
            self.touched.clear();
            self.finished.push(Set::default());
            return self.links.push(Link::Plain);
        }
        let own = self.links.len();
        let of = |access| {
            let bindings = pipeline.bindings.iter().zip(buffers);
            bindings.filter(move |(binding, _)| binding.access == access).map(|(_, buffer)| *buffer)
        };
        let (read, written) = (of(Access::Read), of(Access::Write));
        let goes_on = !apart && matches!(self.links.last(), Some(Link::First(_) | Link::Next(..)));
        let link = match goes_on.then(|| self.awaited(own, read.clone(), written.clone())).flatten() {
            Some(awaited) => Link::Next(workgroups, awaited),
            None => Link::First(workgroups),
        };
        let mut finished = Set::default();
        match link {
            Link::Next(_, awaited) => {
                awaited.iter().filter(|d| **d != own).for_each(|d| finished.add_all(&self.finished[*d]));
            }
            _ => self.touched.clear(),
        }
        finished.add(own);
        for buffer in read {
            self.touched.entry(buffer.id()[0]).or_insert(Touch::Read);
        }
        for buffer in written {
            // What outlives a step may be read by the one that writes it.
            let touch = if buffer.is_pooled() { Touch::Written(own) } else { Touch::Changed };
            self.touched.insert(buffer.id()[0], touch);
        }
        self.finished.push(finished);
        self.links.push(link);
    }

    /// What a dispatch has to wait for; `None` if that takes a barrier.
    fn awaited<'a>(
        &self,
        own: usize,
        read: impl Iterator<Item = &'a Buffer>,
        mut written: impl Iterator<Item = &'a Buffer>,
    ) -> Option<[usize; 2]> {
        let touch = |buffer: &Buffer| self.touched.get(&buffer.id()[0]).copied();
        if written.any(|buffer| touch(buffer).is_some()) {
            return None;
        }
        let mut writers = Vec::new();
        for buffer in read {
            match touch(buffer) {
                Some(Touch::Written(by)) if !writers.contains(&by) => writers.push(by),
                Some(Touch::Changed) => return None,
                _ => {}
            }
        }
        // Some have finished when others have.
        let implied = |d: usize| writers.iter().any(|other| *other != d && self.finished[*other].has(d));
        let awaited: Vec<usize> = writers.iter().copied().filter(|d| !implied(*d)).collect();
        match awaited[..] {
            [] => Some([own, own]),
            [one] => Some([one, one]),
            [one, other] => Some([one, other]),
            _ => None,
        }
    }

    /// How all of them follow one another.
    pub fn into_links(self) -> Vec<Link> {
        self.links
    }
}

/// What the kernels of a submission take that are in chains: the place of each, and its words. Counters go on for ever, and around.
pub(crate) fn words(links: &[Link], counts: &mut [u32], patience: u32) -> Vec<(usize, [u32; LINK_WORDS])> {
    let mut all = Vec::new();
    for (own, link) in links.iter().enumerate() {
        let (workgroups, [one, other]) = match *link {
            Link::Plain => continue,
            Link::First(workgroups) => (workgroups, [own, own]),
            Link::Next(workgroups, awaited) => (workgroups, awaited),
        };
        all.push((own, [one as u32, counts[one], other as u32, counts[other], own as u32, patience]));
        counts[own] = counts[own].wrapping_add(workgroups);
    }
    all
}

#[cfg(test)]
mod tests {
    use ::backend::{Checked, Ops, Weights};
    use checkpoint::{Bytes, Float, Weight};

    use super::*;
    use crate::kernels::norm::{combine_norm, combine_norm_add};
    use crate::{Choice, Gpu, Options};

    /// Software or not; none where the machine has no adapter that kernels can wait on.
    fn gpu() -> Option<Gpu> {
        let options = Options { adapter: Choice::Any, chains: Some(true), ..Options::default() };
        let opened = Gpu::new(&options).inspect_err(|error| testing::skipped("gpu", error)).ok();
        opened.filter(|gpu| gpu.device.chains())
    }

    #[test]
    fn dispatches_wait_for_those_that_write_what_they_read() {
        let Some(gpu) = gpu() else { return };
        let consts = combine_norm_add::Consts { threads: 64, long: false };
        let chained = gpu.pipelines.get(&consts.variant(&combine_norm_add::KERNEL));
        let consts = combine_norm::Consts { threads: 64 };
        let plain = gpu.pipelines.get(&consts.variant(&combine_norm::KERNEL));
        let weights = gpu.pool.fresh("weights", 64).unwrap();
        let state = gpu.pool.fresh("a state", 64).unwrap();
        let [a, b, c, d, e, f, g, h] = [(); 8].map(|()| gpu.pool.take(64).unwrap());
        let more = [(); 5].map(|()| gpu.pool.take(64).unwrap());
        let w = &weights;
        let mut chain = Chain::default();
        let mut added = |read: [&Buffer; 3], written: &Buffer, apart: bool| {
            chain.add(&chained, &[read[0], read[1], read[2], w, w, w, written], 3, apart);
            *chain.links.last().unwrap()
        };
        assert_eq!(added([w, w, w], &a, false), Link::First(3));
        assert_eq!(added([&a, w, w], &b, false), Link::Next(3, [0, 0]));
        assert_eq!(added([&a, w, &a], &c, false), Link::Next(3, [0, 0]));
        // The first has finished when these have.
        assert_eq!(added([&c, &a, &b], &d, false), Link::Next(3, [2, 1]));
        assert_eq!(added([w, w, w], &e, false), Link::Next(3, [4, 4]));
        assert_eq!(added([&a, &d, w], &f, false), Link::Next(3, [3, 3]));
        assert_eq!(added([&e, &f, w], &g, false), Link::Next(3, [4, 5]));
        assert_eq!(added([w, w, w], &h, false), Link::Next(3, [7, 7]));
        assert_eq!(added([w, w, w], &more[0], false), Link::Next(3, [8, 8]));
        // Three of which none implies another.
        assert_eq!(added([&g, &h, &more[0]], &more[1], false), Link::First(3));
        // What outlives a step is not read again behind its change, and nothing is written that was touched.
        assert_eq!(added([&more[1], w, w], &state, false), Link::Next(3, [9, 9]));
        assert_eq!(added([&state, w, w], &a, false), Link::First(3));
        assert_eq!(added([&b, w, w], &c, false), Link::Next(3, [12, 12]));
        assert_eq!(added([w, w, w], &b, false), Link::First(3));
        assert_eq!(added([w, w, w], &d, true), Link::First(3));
        chain.add(&plain, &[&a, w, &b, w, &e], 3, false);
        chain.add(&chained, &[w, w, w, w, w, w, &f], 3, false);
        assert_eq!(chain.links[15..], [Link::Plain, Link::First(3)]);
    }

    #[test]
    fn buffers_rest_until_their_step_is_over() {
        let Some(gpu) = gpu() else { return };
        let used = |take: &dyn Fn() -> Buffer| take().id();
        let take = || gpu.pool.take(64).unwrap();
        let [first, second] = [used(&take), used(&take)];
        assert_ne!(first, second);
        gpu.pool.wake();
        assert_eq!([used(&take), used(&take)], [first, second]);
    }

    #[test]
    fn counters_go_on_and_around() {
        let mut counts = [u32::MAX, 7, 0, 5];
        let links = [Link::First(3), Link::Plain, Link::Next(2, [0, 0]), Link::Next(1, [0, 2])];
        let expected =
            vec![(0, [0, u32::MAX, 0, u32::MAX, 0, 9]), (2, [0, 2, 0, 2, 2, 9]), (3, [0, 2, 2, 2, 3, 9])];
        assert_eq!(words(&links, &mut counts, 9), expected);
        assert_eq!(counts, [2, 7, 2, 6]);
        assert_eq!(words(&links, &mut counts, 9)[1], (2, [0, 5, 0, 5, 2, 9]));
    }

    #[test]
    fn who_waits_in_vain_gives_up_and_says_so() {
        let Some(gpu) = gpu() else { return };
        let planes = [vec![0x37; 64 * 32], Float::Bf16.encode(&[0.5; 64]), Float::Bf16.encode(&[-1.0; 64])];
        let [codes, scales, biases] = planes.map(Bytes::from_vec);
        let weight = Weight::affine("w", 1, 64, 64, 4, 64, Float::Bf16, codes, scales, biases).unwrap();
        let matrix = gpu.linear(&[&weight]).unwrap();
        let b = Checked(&gpu);
        let x = gpu.upload(1, 64, &[1.0; 64]).unwrap();
        let twice = || b.read(&b.matmul(&b.matmul(&x, &matrix)?, &matrix)?);
        let first = twice().unwrap();
        gpu.recorder.expect(1);
        let error = twice().unwrap_err().to_string();
        assert!(error.contains("in vain"), "{error}");
        gpu.recorder.expect(-1);
        assert_eq!(twice().unwrap(), first);
    }
}
