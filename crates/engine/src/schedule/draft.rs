//! The drafting head beside the model: it follows what a step has brought, and drafts for the next
//! one.

use backend::pool::Slot;
use backend::{Backend, Checked, Choice, Handle, Tokens};
use models::Logits;

use super::commit::Gains;
use super::costs::Costs;
use super::plan::Plan;
use super::request::Request;
use crate::draft_state::DraftState;
use crate::{Engine, Error};

/// What the head sees of one request, and is to draft for it.
struct Follower<'a> {
    /// Tokens that follow the positions it sees.
    tokens: &'a [u32],
    /// In the head's pool.
    slot: Slot,
    /// Draft tokens that are wanted, and those made.
    length: usize,
    drafts: &'a mut Vec<u32>,
}

/// Shows the head all positions of the step behind that are there to stay, and has it draft for
/// requests that want it. `hidden` has a row for every token of the step. The result is the number
/// of draft tokens.
pub(super) fn draft<B: Backend>(
    engine: &mut Engine<B>,
    running: &mut [Request],
    plan: &Plan,
    gains: &Gains,
    hidden: &B::Tensor,
    costs: &Costs,
) -> Result<usize, Error> {
    let (requests, context) = (running.len(), engine.context());
    // Drafts wait for prompts.
    let speculate = running.iter().all(Request::is_decoding);
    let firsts: Vec<usize> = (plan.parts.iter())
        .scan(0, |row, part| Some(std::mem::replace(row, *row + part.tokens.len())))
        .collect();
    let (mut rows, mut followers) = (Vec::new(), Vec::new());
    for ((part, request), (_, gain)) in plan.with(running).zip(gains) {
        let first = plan.parts.iter().position(|p| p.request == part.request).map_or(0, |i| firsts[i]);
        let Request { writer, sequence, .. } = request;
        let (Ok(gain), Some(sequence)) = (gain, sequence) else { continue };
        if gain.finish.is_some() || writer.is_without_head() {
            continue;
        }
        if sequence.draft.is_none() {
            sequence.draft = DraftState::new(engine)?;
        }
        let Some(draft) = &mut sequence.draft else { continue };
        let begin = part.begin;
        let end = part.end() - part.drafts + gain.accepted;
        let from = draft.seen.clamp(begin, end);
        if from == end {
            draft.seen = draft.seen.max(end);
            continue;
        }
        let is_last = writer.tokens().len() == end + 1;
        let length = match speculate && is_last {
            true => writer.wanted_drafts(costs, requests, context),
            false => 0,
        };
        if !reserve(engine, draft.slot, end - from + length)? {
            // Without memory for it the head draws no drafts for this sequence.
            sequence.draft.take().into_iter().for_each(|draft| draft.release(engine));
            continue;
        }
        draft.seen = draft.seen.max(end);
        let slot = draft.slot;
        rows.extend(first + from - begin..first + end - begin);
        let (tokens, drafts) = writer.drafting();
        followers.push(Follower { tokens: &tokens[from + 1..=end], slot, length, drafts });
    }
    if followers.is_empty() {
        return Ok(0);
    }
    let b = engine.model().backend();
    let seen = match rows.len() == hidden.shape().rows {
        true => hidden.clone(),
        false => Checked(b).select_rows(hidden, &rows)?,
    };
    draft_all(engine, seen, &mut followers)?;
    Ok(followers.iter().map(|follower| follower.drafts.len()).sum())
}

/// Makes room for the head's next positions; false where memory is missing.
fn reserve<B: Backend>(engine: &mut Engine<B>, slot: Slot, tokens: usize) -> Result<bool, Error> {
    let (b, pools) = engine.parts();
    match pools.drafts() {
        Some(pool) => Ok(pool.reserve(b, slot, tokens)?),
        None => Ok(false),
    }
}

/// Makes drafts: the first follows from what the model made of the last token, each further one
/// from what the head made of the one before; the cache keeps only what came from the model.
fn draft_all<B: Backend>(
    engine: &mut Engine<B>,
    mut hidden: B::Tensor,
    followers: &mut [Follower<'_>],
) -> Result<(), Error> {
    let (model, pools) = engine.model_and_pools();
    let b = model.backend();
    let Some(pool) = pools.drafts() else { return Ok(()) };
    let kept: Vec<usize> = followers.iter().map(|f| pool.len(f.slot) + f.tokens.len()).collect();
    'drafts: for made in 0.. {
        let more = |f: &Follower<'_>| f.length > made;
        let mut requests: Vec<models::Request<'_>> = Vec::new();
        for follower in followers.iter().filter(|f| made == 0 || more(f)) {
            let logits = if more(follower) { Logits::Last } else { Logits::None };
            let tokens = if made == 0 { follower.tokens } else { &follower.drafts[made - 1..] };
            // A step frees what was reserved beyond it.
            if made > 0 && !pool.reserve(b, follower.slot, tokens.len())? {
                break 'drafts;
            }
            requests.push(models::Request { slot: follower.slot, tokens: Tokens::Ids(tokens), logits });
        }
        if requests.is_empty() {
            break;
        }
        let Some(drafted) = model.draft(pool, &hidden, &requests)? else { break };
        drop(requests);
        let choices = vec![Choice::LIKELIEST; drafted.logits.shape().rows];
        let best = b.collect(b.submit(Some(&drafted.logits), &choices, pool.slabs_mut())?)?;
        let mut next = Vec::new();
        for (row, (follower, best)) in followers.iter_mut().filter(|f| more(f)).zip(best).enumerate() {
            follower.drafts.push(best.token);
            if follower.length > made + 1 {
                next.push(row);
            }
        }
        if next.is_empty() {
            break;
        }
        hidden = Checked(b).select_rows(&drafted.hidden, &next)?;
    }
    for (follower, kept) in followers.iter().zip(kept) {
        pool.truncate(follower.slot, kept);
    }
    Ok(())
}
