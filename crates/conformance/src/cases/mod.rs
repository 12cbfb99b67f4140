//! The cases, one file per group of operations.

mod attention;
mod blocks;
mod caches;
mod choose;
mod experts;
mod gdn;
mod last;
mod latent;
mod layout;
mod linear;
mod norms;
pub mod pools;
mod positions;
mod products;
mod recurrent;
mod refusals;
mod refusals_state;
mod routing;
mod test_pool;
mod windows;

use std::ops::Range;

use backend::pool::Pool;
use backend::{Backend, Batch, Checked, Error, Result, Tokens};

use crate::host::Rows;
use crate::{Case, CaseResult, Fault, Output};

/// Every case there is.
pub fn all<B: Backend>() -> Vec<Case<B>> {
    let groups = [
        layout::cases,
        products::cases,
        norms::cases,
        positions::cases,
        attention::cases,
        windows::cases,
        latent::cases,
        routing::cases,
        experts::cases,
        gdn::cases,
        recurrent::cases,
        linear::cases,
        blocks::cases,
        caches::cases,
        choose::cases,
        last::cases,
        refusals::cases,
        refusals_state::cases,
    ];
    groups.into_iter().flat_map(|cases| cases()).collect()
}

/// Label of an output that was computed in one call. On a backend that promises it, all outputs of the case labelled
/// [`CHUNKS`] have the same bits.
pub const AT_ONCE: &str = "at once";

/// Beginning of the label of an output that was computed in several calls.
pub const CHUNKS: &str = "chunks of";

/// Consecutive ranges of at most `chunk` that cover `0..n`.
fn chunks(n: usize, chunk: usize) -> impl Iterator<Item = Range<usize>> {
    (0..n).step_by(chunk).map(move |start| start..n.min(start + chunk))
}

/// `n` tokens at once and in chunks of 64, 7 and 1 must all be as expected; `run(chunk)` computes them all in chunks.
fn in_chunks(n: usize, expected: &Rows, mut run: impl FnMut(usize) -> Result<Vec<f32>>) -> CaseResult {
    let mut outputs = vec![Output::close(AT_ONCE, run(n)?, expected)];
    for chunk in [64, 7, 1].into_iter().filter(|chunk| *chunk < n) {
        outputs.push(Output::close(format!("{CHUNKS} {chunk}"), run(chunk)?, expected));
    }
    Ok(outputs)
}

/// `n` tokens of one sequence, for operations without a cache.
fn one_span<B: Backend>(b: &Checked<'_, B>, n: usize, position: usize) -> Result<Batch<B>> {
    batch_at(b, &[(&vec![0; n], position)])
}

/// Several sequences, for operations without a cache: tokens and position of each.
fn batch_at<B: Backend>(b: &Checked<'_, B>, sequences: &[(&[u32], usize)]) -> Result<Batch<B>> {
    // Of no layers, a position costs nothing.
    let mut pool = Pool::new(b.0, &[], 0)?;
    let mut spans = Vec::new();
    for (tokens, position) in sequences {
        let slot = pool.create(b.0)?.ok_or_else(|| Error::OutOfMemory("a sequence of no layers".into()))?;
        pool.advance(slot, *position);
        spans.push((slot, Tokens::Ids(tokens)));
    }
    Batch::new(b.0, &pool, &spans)
}

/// One output under the label `y`.
fn y(values: Vec<f32>, expected: &Rows) -> CaseResult {
    Ok(vec![Output::close("y", values, expected)])
}

/// A property that must hold.
fn ensure(holds: bool, otherwise: &str) -> std::result::Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault::Wrong(otherwise.to_owned())) }
}

/// That a call was refused with a shape error that names the operation.
fn refused<T>(operation: &str, result: Result<T>) -> CaseResult {
    match result {
        Err(Error::Shape { operation: named, .. }) if named == operation => Ok(Vec::new()),
        Err(error) => Err(Fault::Wrong(format!("refused, but with {error:?}"))),
        Ok(_) => Err(Fault::Wrong("an impossible shape was accepted".into())),
    }
}
