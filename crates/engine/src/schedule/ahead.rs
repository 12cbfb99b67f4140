//! The next step of an answer that is alone. It is recorded while the device is busy with the present one, or, where the likeliest token is all
//! that is wanted, it runs already: the device goes on with that token by itself, while the host still learns which it is. It must be the very
//! next step: until then nobody else joins, and nothing else is done with the answer's state.

use backend::Backend;
use models::{Ahead, Model};

use super::answer::Answer;
use crate::{Engine, Error};

/// A step before its turn.
pub(super) enum Next<B: Backend> {
    Recorded(Ahead<B>),
    Started(Step<B>),
}

/// What a step of one token leaves.
pub(super) struct Step<B: Backend> {
    pub logits: B::Tensor,
    /// The likeliest token by them, if the device was asked.
    pub chosen: Option<B::Chosen>,
}

impl<B: Backend> Answer<B> {
    /// Whether its next step is recorded, or runs.
    pub fn is_ahead(&self) -> bool {
        self.next.is_some()
    }

    /// Records or starts the step after the present one, whose token is not known yet, and says whether it did: not if there may be something to
    /// `guess` then, or if the present step brings no token.
    pub fn go_ahead(
        &mut self,
        engine: &Engine<B>,
        present: &mut Step<B>,
        guess: bool,
    ) -> Result<bool, Error> {
        // A place to return to is remembered by a copy of the state, which must not be further than that. It is in the prompt, which an answer
        // that is being written has behind it.
        if !self.is_writing() || self.rows() != 1 || !self.writer.goes_on(guess, engine.context()) {
            return Ok(false);
        }
        let Some(sequence) = &mut self.sequence else { return Ok(false) };
        let model = engine.model();
        self.next = Some(if self.writer.takes_likeliest() {
            let chosen = match &present.chosen {
                Some(chosen) => chosen,
                None => present.chosen.insert(model.backend().choose(&present.logits)?),
            };
            let (logits, chosen) = model.step_chosen(chosen, &mut sequence.state)?;
            Next::Started(Step { logits, chosen: Some(chosen) })
        } else {
            Next::Recorded(model.step_ahead(&mut sequence.state)?)
        });
        Ok(true)
    }

    /// Starts the step that was recorded, with the token that was chosen since, unless it runs already.
    pub fn start_ahead(&mut self, model: &Model<B>) -> Result<Option<Step<B>>, Error> {
        Ok(match self.next.take() {
            Some(Next::Recorded(ahead)) => {
                let logits = model.start(ahead, self.writer.token_at(self.begin))?;
                Some(Step { logits, chosen: None })
            }
            Some(Next::Started(step)) => Some(step),
            None => None,
        })
    }

    /// Brings the sequence of an answer that is over to where its state is: a step that was recorded is started with the token that was chosen
    /// last, be it the one that ended the answer.
    pub fn conclude(&mut self, model: &Model<B>) {
        let (Some(next), Some(sequence)) = (self.next.take(), &mut self.sequence) else { return };
        let token = self.writer.token_at(sequence.tokens.len());
        let started = match next {
            Next::Recorded(ahead) => model.start(ahead, token).is_ok(),
            Next::Started(_) => true,
        };
        if started {
            sequence.tokens.push(token);
        } else {
            // The answer is complete; only what later prompts could have had of it is lost.
            self.sequence = None;
        }
    }
}
