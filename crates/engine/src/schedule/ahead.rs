//! The next step of an answer that is alone, recorded while the device is busy with the present one. It must be started as the very next
//! step: until then nobody else joins, and nothing else is done with the answer's state.

use backend::Backend;
use models::Model;

use super::answer::Answer;
use crate::{Engine, Error};

impl<B: Backend> Answer<B> {
    /// Whether its next step is recorded.
    pub fn is_ahead(&self) -> bool {
        self.ahead.is_some()
    }

    /// Records the step after the present one, whose token is not chosen yet, and says whether it did: not if there may be something to
    /// `guess` then, or if the present step brings no token.
    pub fn record_ahead(&mut self, engine: &Engine<B>, guess: bool) -> Result<bool, Error> {
        let (planned, _) = self.writer.planned();
        // A place to return to is remembered by a copy of the state, which must not be further than that.
        let marks = self.begin + planned == self.writer.job.stable;
        if !self.is_writing() || self.rows() != 1 || marks || !self.writer.goes_on(guess, engine.context()) {
            return Ok(false);
        }
        let Some(sequence) = &mut self.sequence else { return Ok(false) };
        self.ahead = Some(engine.model().step_ahead(&mut sequence.state)?);
        Ok(true)
    }

    /// Starts the step that was recorded, with the token that was chosen since; its logits.
    pub fn start_ahead(&mut self, model: &Model<B>) -> Result<Option<B::Tensor>, Error> {
        let Some(ahead) = self.ahead.take() else { return Ok(None) };
        let token = self.writer.token_at(self.begin);
        Ok(Some(model.start(ahead, token)?))
    }

    /// Brings the sequence of an answer that is over to where its state is: a step that was recorded is started with the token that was chosen
    /// last, be it the one that ended the answer.
    pub fn conclude(&mut self, model: &Model<B>) {
        let (Some(ahead), Some(sequence)) = (self.ahead.take(), &mut self.sequence) else { return };
        let token = self.writer.token_at(sequence.tokens.len());
        match model.start(ahead, token) {
            Ok(_) => sequence.tokens.push(token),
            // The answer is complete; only what later prompts could have had of it is lost.
            Err(_) => self.sequence = None,
        }
    }
}
