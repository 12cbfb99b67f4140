//! The strings that set thoughts and calls apart from text.

use super::Dialect;

/// The marks of a dialect.
pub struct Marks {
    /// What begins and ends thoughts.
    pub thoughts: Option<[&'static str; 2]>,
    /// What a call begins with, the usual one first; none where there are no calls.
    pub openings: &'static [&'static str],
    /// What may follow the last of several calls.
    pub group_end: Option<&'static str>,
    /// What begins a turn or ends what others wrote: thoughts that are open at the end of a prompt began after the last.
    pub turns: &'static [&'static str],
    /// All of them that can be tokens.
    pub tokens: &'static [&'static str],
}

const THINK: [&str; 2] = ["<think>", "</think>"];
const CHAT_TURNS: &[&str] = &["<|im_start|>", "<｜User｜>", "<｜Assistant｜>"];

static PLAIN: Marks = Marks { thoughts: None, openings: &[], group_end: None, turns: &[], tokens: &[] };

static THINKING: Marks =
    Marks { thoughts: Some(THINK), openings: &[], group_end: None, turns: CHAT_TURNS, tokens: &THINK };

static QWEN: Marks = Marks {
    thoughts: Some(THINK),
    openings: &["<tool_call>"],
    group_end: None,
    turns: CHAT_TURNS,
    tokens: &["<think>", "</think>", "<tool_call>", "</tool_call>"],
};

static DEEPSEEK: Marks = Marks {
    thoughts: Some(THINK),
    openings: &["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"],
    group_end: Some("<｜tool▁calls▁end｜>"),
    turns: &["<｜User｜>", "<｜Assistant｜>", "<｜tool▁output▁end｜>"],
    tokens: &[
        "<think>",
        "</think>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ],
};

static GEMMA: Marks = Marks {
    thoughts: Some(["<|channel>thought", "<channel|>"]),
    openings: &["<|tool_call>"],
    group_end: None,
    turns: &["<|turn>", "<tool_response|>"],
    tokens: &["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>"],
};

/// Where thoughts stand at the end of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thoughts {
    /// The prompt says nothing about them.
    Unknown,
    /// They have begun: the answer continues them.
    Open,
    /// They are over, which is how templates say that there shall be none.
    Closed,
}

impl Dialect {
    pub(super) fn marks(self) -> &'static Marks {
        match self {
            Self::Plain => &PLAIN,
            Self::Thinking => &THINKING,
            Self::QwenJson | Self::QwenXml => &QWEN,
            Self::DeepSeek | Self::DeepSeekFenced => &DEEPSEEK,
            Self::Gemma => &GEMMA,
        }
    }

    /// The mark that ends the thoughts in which a prompt ends, if it does.
    pub fn open_thoughts(self, prompt: &str) -> Option<&'static str> {
        let marks = self.marks();
        let [_, end] = marks.thoughts?;
        (marks.thoughts_after(prompt) == Thoughts::Open).then_some(end)
    }

    /// Whether a token is one of the dialect's marks.
    pub(crate) fn has_mark(self, token: &str) -> bool {
        self.marks().tokens.contains(&token)
    }
}

impl Marks {
    /// Where thoughts stand at the end of a prompt.
    pub fn thoughts_after(&self, prompt: &str) -> Thoughts {
        let Some([open, close]) = self.thoughts else { return Thoughts::Closed };
        let turn = self.turns.iter().filter_map(|turn| Some(prompt.rfind(turn)? + turn.len())).max();
        let turn = &prompt[turn.unwrap_or(0)..];
        match (turn.rfind(open), turn.rfind(close)) {
            (None, None) => Thoughts::Unknown,
            (Some(opened), closed) if closed.is_none_or(|closed| closed < opened) => Thoughts::Open,
            _ => Thoughts::Closed,
        }
    }
}
