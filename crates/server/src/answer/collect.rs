//! Whole answers, for clients that do not stream.

use engine::Piece;

use super::choice::{Event, Outcome, TokenInfo};
use super::replies::Replies;
use crate::fault::Fault;

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Collected {
    /// What the model thought before.
    pub reasoning: String,
    /// What it said.
    pub text: String,
    /// Calls of tools: names and arguments.
    pub calls: Vec<(String, String)>,
    /// Its tokens, where the question asks how probable they were.
    pub tokens: Vec<TokenInfo>,
    /// How it ended.
    pub outcome: Outcome,
}

/// What there is of an answer that has not ended.
#[derive(Default)]
struct Begun {
    reasoning: String,
    text: String,
    calls: Vec<(String, String)>,
    tokens: Vec<TokenInfo>,
    outcome: Option<Outcome>,
}

/// Waits for all answers. The first that fails fails them all.
pub async fn collect(replies: &mut Replies) -> Result<Vec<Collected>, Fault> {
    let mut begun: Vec<Begun> = Vec::new();
    while let Some((index, event)) = replies.next().await {
        if begun.len() <= index {
            begun.resize_with(index + 1, Begun::default);
        }
        let answer = &mut begun[index];
        match event {
            Event::Started => {}
            Event::Part(piece, tokens) => {
                answer.tokens.extend(tokens);
                match piece {
                    Piece::Reasoning(text) => answer.reasoning += &text,
                    Piece::Text(text) => answer.text += &text,
                    Piece::Call { name, arguments } => answer.calls.push((name, arguments)),
                }
            }
            Event::Finished(outcome) => answer.outcome = Some(outcome),
            Event::Failed(fault) => return Err(fault),
        }
    }
    let whole = |begun: Begun| {
        let Begun { reasoning, text, calls, tokens, outcome } = begun;
        Some(Collected { reasoning, text, calls, tokens, outcome: outcome? })
    };
    let all: Option<Vec<Collected>> = begun.into_iter().map(whole).collect();
    all.ok_or_else(|| Fault::internal("an answer has no end"))
}
