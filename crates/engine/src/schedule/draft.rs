//! The drafting head beside the model: it sees what a step has brought, and guesses for the next one.

use backend::{Backend, Handle};
use models::{Logits, Request, State};

use super::answer::Answer;
use super::costs::Costs;
use super::run::Gains;
use crate::draft_state::DraftState;
use crate::{Engine, Error};

/// What the head sees of one answer, and is to guess for it.
struct Follower<'a, B: Backend> {
    /// Tokens that follow the positions it sees.
    tokens: &'a [u32],
    state: &'a mut State<B>,
    /// Guesses that are wanted, and those made.
    length: usize,
    guesses: &'a mut Vec<u32>,
}

/// Shows the head all positions of the step behind that are there to stay, and has it guess for answers that want it. `hidden` has a row
/// for every token of the step. Returns the number of guesses.
pub(super) fn draft<B: Backend>(
    engine: &Engine<B>,
    running: &mut [Answer<B>],
    gains: &Gains,
    hidden: &B::Tensor,
    costs: &Costs,
) -> Result<usize, Error> {
    let b = engine.model().backend();
    let answers = running.len();
    // Guesses wait for prompts.
    let guess = running.iter().all(Answer::is_writing);
    let (mut row, mut rows, mut followers) = (0, Vec::new(), Vec::new());
    for (answer, gain) in running.iter_mut().zip(gains) {
        let (planned, guessed) = answer.writer.planned();
        let first = row;
        row += planned;
        let (Ok(gain), Some(sequence)) = (gain, &mut answer.sequence) else { continue };
        if gain.finish.is_some() || answer.writer.is_without_head() {
            continue;
        }
        if sequence.draft.is_none() {
            sequence.draft = engine.model().draft_state(engine.cache())?.map(DraftState::new);
        }
        let Some(draft) = &mut sequence.draft else { continue };
        let begin = answer.begin;
        let end = begin + planned - guessed + gain.right as usize;
        let from = draft.seen.clamp(begin, end);
        draft.seen = draft.seen.max(end);
        if from == end {
            continue;
        }
        rows.extend(first + from - begin..first + end - begin);
        let is_last = answer.writer.tokens().len() == end + 1;
        let length =
            if guess && is_last { answer.writer.wanted(costs, answers, engine.context()) } else { 0 };
        let (tokens, guesses) = answer.writer.drafting();
        followers.push(Follower {
            tokens: &tokens[from + 1..=end],
            state: &mut draft.state,
            length,
            guesses,
        });
    }
    if followers.is_empty() {
        return Ok(0);
    }
    let seen = if rows.len() == hidden.shape().rows { hidden.clone() } else { b.select_rows(hidden, &rows)? };
    guess_all(engine, seen, &mut followers)?;
    Ok(followers.iter().map(|follower| follower.guesses.len()).sum())
}

/// The first guess follows from what the model made of the last token, each further one from what the head made of the one before; the cache
/// keeps only what came from the model.
fn guess_all<B: Backend>(
    engine: &Engine<B>,
    mut hidden: B::Tensor,
    followers: &mut [Follower<'_, B>],
) -> Result<(), Error> {
    let (model, b) = (engine.model(), engine.model().backend());
    let kept: Vec<usize> = followers.iter().map(|f| f.state.len() + f.tokens.len()).collect();
    for made in 0.. {
        let more = |f: &Follower<'_, B>| f.length > made;
        let mut requests: Vec<Request<'_, B>> = Vec::new();
        for follower in followers.iter_mut().filter(|f| made == 0 || more(f)) {
            let logits = if more(follower) { Logits::Last } else { Logits::None };
            let tokens = if made == 0 { follower.tokens } else { &follower.guesses[made - 1..] };
            requests.push(Request { tokens, state: follower.state, logits });
        }
        if requests.is_empty() {
            break;
        }
        let Some(drafted) = model.draft(&hidden, &mut requests)? else { break };
        drop(requests);
        let best = b.read_top(&drafted.logits, 1)?;
        let mut next = Vec::new();
        for (row, (follower, best)) in followers.iter_mut().filter(|f| more(f)).zip(best).enumerate() {
            follower.guesses.extend(best.first().map(|(id, _)| *id));
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
