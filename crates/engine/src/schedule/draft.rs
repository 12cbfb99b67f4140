//! The drafting head beside the model: it follows what a step has brought, and drafts for the next
//! one.

use backend::{Backend, Handle};
use models::{Logits, State};

use super::commit::Gains;
use super::costs::Costs;
use super::plan::Plan;
use super::request::Request;
use crate::draft_state::DraftState;
use crate::{Engine, Error};

/// What the head sees of one request, and is to draft for it.
struct Follower<'a, B: Backend> {
    /// Tokens that follow the positions it sees.
    tokens: &'a [u32],
    state: &'a mut State<B>,
    /// Draft tokens that are wanted, and those made.
    length: usize,
    drafts: &'a mut Vec<u32>,
}

/// Shows the head all positions of the step behind that are there to stay, and has it draft for
/// requests that want it. `hidden` has a row for every token of the step. The result is the number
/// of draft tokens.
pub(super) fn draft<B: Backend>(
    engine: &Engine<B>,
    running: &mut [Request<B>],
    plan: &Plan,
    gains: &Gains,
    hidden: &B::Tensor,
    costs: &Costs,
) -> Result<usize, Error> {
    let b = engine.model().backend();
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
            sequence.draft = engine.model().draft_state(engine.cache())?.map(DraftState::new);
        }
        let Some(draft) = &mut sequence.draft else { continue };
        let begin = part.begin;
        let end = part.end() - part.drafts + gain.accepted;
        let from = draft.seen.clamp(begin, end);
        draft.seen = draft.seen.max(end);
        if from == end {
            continue;
        }
        rows.extend(first + from - begin..first + end - begin);
        let is_last = writer.tokens().len() == end + 1;
        let length = match speculate && is_last {
            true => writer.wanted_drafts(costs, requests, context),
            false => 0,
        };
        let (tokens, drafts) = writer.drafting();
        let tokens = &tokens[from + 1..=end];
        followers.push(Follower { tokens, state: &mut draft.state, length, drafts });
    }
    if followers.is_empty() {
        return Ok(0);
    }
    let seen = if rows.len() == hidden.shape().rows { hidden.clone() } else { b.select_rows(hidden, &rows)? };
    draft_all(engine, seen, &mut followers)?;
    Ok(followers.iter().map(|follower| follower.drafts.len()).sum())
}

/// Makes drafts: the first follows from what the model made of the last token, each further one
/// from what the head made of the one before; the cache keeps only what came from the model.
fn draft_all<B: Backend>(
    engine: &Engine<B>,
    mut hidden: B::Tensor,
    followers: &mut [Follower<'_, B>],
) -> Result<(), Error> {
    let (model, b) = (engine.model(), engine.model().backend());
    let kept: Vec<usize> = followers.iter().map(|f| f.state.len() + f.tokens.len()).collect();
    for made in 0.. {
        let more = |f: &Follower<'_, B>| f.length > made;
        let mut requests: Vec<models::Request<'_, B>> = Vec::new();
        for follower in followers.iter_mut().filter(|f| made == 0 || more(f)) {
            let logits = if more(follower) { Logits::Last } else { Logits::None };
            let tokens = if made == 0 { follower.tokens } else { &follower.drafts[made - 1..] };
            requests.push(models::Request { tokens, state: follower.state, logits });
        }
        if requests.is_empty() {
            break;
        }
        let Some(drafted) = model.draft(&hidden, &mut requests)? else { break };
        drop(requests);
        let best = b.read_top(&drafted.logits, 1, &[])?;
        let mut next = Vec::new();
        for (row, (follower, best)) in followers.iter_mut().filter(|f| more(f)).zip(best).enumerate() {
            follower.drafts.extend(best.first().map(|(id, _)| *id));
            if follower.length > made + 1 {
                next.push(row);
            }
        }
        if next.is_empty() {
            break;
        }
        hidden = b.select_rows(&drafted.hidden, &next)?;
    }
    for (follower, kept) in followers.iter_mut().zip(kept) {
        follower.state.truncate(b, kept)?;
    }
    Ok(())
}
