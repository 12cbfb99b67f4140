//! One answer as it comes: tokens in, events out.

use engine::{Finish, Piece, Reader, StopScanner, TokenStream, TokenUpdate};

use super::Usage;
use crate::fault::{Fault, request_fault};

/// What becomes of an answer.
#[derive(Clone, Debug)]
pub enum Event {
    /// Its prompt has been computed.
    Started,
    /// A part of it, and the tokens since the part before where the question asks how probable they were.
    Part(Piece, Vec<TokenInfo>),
    /// It is over; the last event.
    Finished(Outcome),
    /// It went wrong; the last event.
    Failed(Fault),
}

/// A token and how probable it was.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenInfo {
    /// The token.
    pub id: u32,
    /// Logarithm of its probability.
    pub logprob: f32,
    /// The most probable tokens and theirs.
    pub top: Vec<(u32, f32)>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The model said so.
    End,
    /// The model waits for what the tools it called have to say.
    Calls,
    /// This stop string came.
    Stop(String),
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Why.
    pub ending: Ending,
    /// What it took; `prompt` is that of this answer alone.
    pub usage: Usage,
}

/// The state of one answer.
pub struct Choice {
    stream: TokenStream,
    reader: Option<Reader>,
    stops: Vec<String>,
    scanner: StopScanner,
    /// Whether anyone asks how probable tokens were.
    informed: bool,
    pending: Vec<TokenInfo>,
    calls: usize,
    thinking: bool,
    usage: Usage,
}

impl Choice {
    /// An answer to a prompt of so many tokens.
    pub fn new(
        stream: TokenStream,
        reader: Option<Reader>,
        stops: Vec<String>,
        informed: bool,
        prompt: usize,
    ) -> Self {
        let scanner = StopScanner::new(stops.clone());
        let usage = Usage { prompt, ..Usage::default() };
        Self {
            stream,
            reader,
            stops,
            scanner,
            informed,
            pending: Vec::new(),
            calls: 0,
            thinking: false,
            usage,
        }
    }

    /// Its prompt has been computed.
    pub fn started(&mut self, reused: usize) {
        self.usage.cached = reused;
    }

    /// What it has taken so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The next token. Where a stop string ends the answer, the last event says so.
    pub fn token(&mut self, update: TokenUpdate) -> Vec<Event> {
        let TokenUpdate { id, logprob, top } = update;
        self.usage.completion += 1;
        if self.informed {
            self.pending.push(TokenInfo { id, logprob: logprob.unwrap_or(f32::NEG_INFINITY), top });
        }
        let text = match self.stream.push(id) {
            Ok(text) => text,
            Err(error) => return vec![Event::Failed(request_fault(error))],
        };
        let pieces = self.read(&text);
        let mut events = Vec::new();
        let stop = self.parts(pieces, &mut events);
        self.usage.reasoning += usize::from(self.thinking);
        events.extend(stop.map(|stop| self.finished(Ending::Stop(stop))));
        events
    }

    /// The end of the tokens.
    pub fn end(&mut self, finish: Finish) -> Vec<Event> {
        let rest = self.stream.finish();
        let mut pieces = self.read(&rest);
        pieces.extend(self.reader.as_mut().map(Reader::finish).unwrap_or_default());
        let mut events = Vec::new();
        let mut stop = self.parts(pieces, &mut events);
        if stop.is_none() {
            stop = self.flush(&mut events);
        }
        if !self.pending.is_empty() && stop.is_none() {
            self.part(Piece::Text(String::new()), &mut events);
        }
        let ending = match (stop, finish) {
            (Some(stop), _) => Ending::Stop(stop),
            (None, Finish::Length) => Ending::Length,
            (None, Finish::Context) => Ending::Context,
            (None, Finish::End | Finish::Stopped) if self.calls > 0 => Ending::Calls,
            (None, Finish::End | Finish::Stopped) => Ending::End,
        };
        events.push(self.finished(ending));
        events
    }

    fn finished(&self, ending: Ending) -> Event {
        Event::Finished(Outcome { ending, usage: self.usage })
    }

    fn read(&mut self, text: &str) -> Vec<Piece> {
        match (&mut self.reader, text) {
            (_, "") => Vec::new(),
            (Some(reader), text) => reader.push(text),
            (None, text) => vec![Piece::Text(text.into())],
        }
    }

    /// Passes pieces on, text only up to a stop string, which is returned.
    fn parts(&mut self, pieces: Vec<Piece>, events: &mut Vec<Event>) -> Option<String> {
        for piece in pieces {
            self.thinking = matches!(piece, Piece::Reasoning(_));
            match piece {
                Piece::Text(text) => {
                    let outcome = self.scanner.push(&text);
                    if !outcome.text.is_empty() {
                        self.part(Piece::Text(outcome.text), events);
                    }
                    if let Some(index) = outcome.stopped {
                        return Some(self.stops[index].clone());
                    }
                }
                Piece::Reasoning(text) if text.is_empty() => {}
                piece => {
                    // The text is interrupted: what was held back cannot become a stop string any more.
                    if let Some(stop) = self.flush(events) {
                        return Some(stop);
                    }
                    self.calls += usize::from(matches!(piece, Piece::Call { .. }));
                    self.part(piece, events);
                }
            }
        }
        None
    }

    /// Passes on what the scanner held back.
    fn flush(&mut self, events: &mut Vec<Event>) -> Option<String> {
        let outcome = self.scanner.finish();
        if !outcome.text.is_empty() {
            self.part(Piece::Text(outcome.text), events);
        }
        self.scanner = StopScanner::new(self.stops.clone());
        outcome.stopped.map(|index| self.stops[index].clone())
    }

    fn part(&mut self, piece: Piece, events: &mut Vec<Event>) {
        events.push(Event::Part(piece, std::mem::take(&mut self.pending)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::tests::tokenizer;

    fn choice(stops: &[&str], informed: bool) -> Choice {
        let stops = stops.iter().map(|stop| stop.to_string()).collect();
        Choice::new(tokenizer().stream(false), None, stops, informed, 3)
    }

    /// The events of an answer that is this text.
    fn events(choice: &mut Choice, text: &str, finish: Finish) -> Vec<Event> {
        let ids = tokenizer().encode(text, false).unwrap();
        let mut events = Vec::new();
        for id in ids {
            events.extend(choice.token(TokenUpdate { id, logprob: Some(-0.5), top: vec![(id, -0.5)] }));
            if matches!(events.last(), Some(Event::Finished(_))) {
                return events;
            }
        }
        events.extend(choice.end(finish));
        events
    }

    fn text(events: &[Event]) -> String {
        let part = |event: &Event| match event {
            Event::Part(Piece::Text(text), _) => Some(text.clone()),
            _ => None,
        };
        events.iter().filter_map(part).collect()
    }

    fn ending(events: &[Event]) -> Ending {
        match events.last() {
            Some(Event::Finished(outcome)) => outcome.ending.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn text_comes_whole_and_ends_as_it_did() {
        for (finish, expected) in [
            (Finish::End, Ending::End),
            (Finish::Stopped, Ending::End),
            (Finish::Length, Ending::Length),
            (Finish::Context, Ending::Context),
        ] {
            let events = events(&mut choice(&["###"], false), "Grüße, 世界 ##", finish);
            assert_eq!((text(&events), ending(&events)), ("Grüße, 世界 ##".into(), expected));
        }
    }

    #[test]
    fn a_stop_string_ends_the_answer_and_is_not_part_of_it() {
        let events = events(&mut choice(&["never", "END"], false), "one two END three", Finish::End);
        assert_eq!((text(&events), ending(&events)), ("one two ".into(), Ending::Stop("END".into())));
    }

    #[test]
    fn every_token_is_told_once() {
        let said = "Hello, world: 12 ##";
        let mut choice = choice(&["###"], true);
        let events = events(&mut choice, said, Finish::End);
        let told: Vec<u32> = (events.iter())
            .filter_map(|event| match event {
                Event::Part(_, tokens) => Some(tokens.iter().map(|token| token.id)),
                _ => None,
            })
            .flatten()
            .collect();
        assert_eq!(told, tokenizer().encode(said, false).unwrap());
        assert_eq!(choice.usage().completion, told.len());
    }
}
