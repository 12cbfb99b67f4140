//! Answers in Anthropic's shape: blocks of content, whole or piece by piece.

use engine::Piece;
use serde_json::{Value as Json, json};

use crate::answer::{Collected, Ending, Event, Outcome, Usage};
use crate::ids;

/// Stands where Anthropic's servers sign thoughts, so that clients send them back.
const SIGNATURE: &str = "unsigned";

/// Kinds of blocks that grow piece by piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
}

/// Writes one answer.
pub struct Writer {
    id: String,
    model: String,
    /// The block that is open.
    open: Option<Block>,
    /// Index of the open block, or of the next one.
    index: usize,
}

impl Writer {
    /// A writer of the answer of a model.
    pub fn new(model: String) -> Self {
        Self { id: ids::fresh("msg_"), model, open: None, index: 0 }
    }

    fn message(&self, content: Json, stop: (Json, Json), usage: Json) -> Json {
        let (stop_reason, stop_sequence) = stop;
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": usage,
        })
    }

    /// What a stream begins with. What was known of the prompt turns out later and is told at the end.
    pub fn opening(&self, usage: &Usage) -> [Json; 2] {
        let message = self.message(json!([]), (Json::Null, Json::Null), usage_json(usage));
        [json!({"type": "message_start", "message": message}), json!({"type": "ping"})]
    }

    /// The events that an event of the answer becomes.
    pub fn event(&mut self, event: Event) -> Vec<Json> {
        match event {
            Event::Started | Event::Failed(_) => Vec::new(),
            Event::Part(Piece::Reasoning(text), _) => {
                let delta = json!({"type": "thinking_delta", "thinking": text});
                self.grow(Block::Thinking, delta)
            }
            Event::Part(Piece::Text(text), _) if text.is_empty() => Vec::new(),
            Event::Part(Piece::Text(text), _) => {
                self.grow(Block::Text, json!({"type": "text_delta", "text": text}))
            }
            Event::Part(Piece::Call { name, arguments }, _) => {
                let mut events = self.close();
                let block =
                    json!({"type": "tool_use", "id": ids::fresh("toolu_"), "name": name, "input": {}});
                events.push(self.start(block));
                events.push(self.delta(json!({"type": "input_json_delta", "partial_json": arguments})));
                events.push(self.stop());
                events
            }
            Event::Finished(outcome) => {
                let mut events = self.close();
                let (stop_reason, stop_sequence) = stop(&outcome.ending);
                events.push(json!({
                    "type": "message_delta",
                    "delta": {"stop_reason": stop_reason, "stop_sequence": stop_sequence},
                    "usage": usage_json(&outcome.usage),
                }));
                events.push(json!({"type": "message_stop"}));
                events
            }
        }
    }

    /// Adds to a block, which is opened, and the one before closed, where it must be.
    fn grow(&mut self, kind: Block, delta: Json) -> Vec<Json> {
        let mut events = Vec::new();
        if self.open != Some(kind) {
            events = self.close();
            events.push(self.start(match kind {
                Block::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
                Block::Text => json!({"type": "text", "text": ""}),
            }));
            self.open = Some(kind);
        }
        events.push(self.delta(delta));
        events
    }

    fn start(&self, block: Json) -> Json {
        json!({"type": "content_block_start", "index": self.index, "content_block": block})
    }

    fn delta(&self, delta: Json) -> Json {
        json!({"type": "content_block_delta", "index": self.index, "delta": delta})
    }

    fn stop(&mut self) -> Json {
        let event = json!({"type": "content_block_stop", "index": self.index});
        self.index += 1;
        event
    }

    /// Closes the open block, if there is one.
    fn close(&mut self) -> Vec<Json> {
        let mut events = Vec::new();
        match self.open.take() {
            None => return events,
            Some(Block::Thinking) => {
                events.push(self.delta(json!({"type": "signature_delta", "signature": SIGNATURE})));
            }
            Some(Block::Text) => {}
        }
        events.push(self.stop());
        events
    }

    /// The whole answer.
    pub fn whole(&self, answer: &Collected) -> Json {
        let mut content = Vec::new();
        if !answer.reasoning.is_empty() {
            content.push(json!({"type": "thinking", "thinking": answer.reasoning, "signature": SIGNATURE}));
        }
        if !answer.text.is_empty() {
            content.push(json!({"type": "text", "text": answer.text}));
        }
        for (name, arguments) in &answer.calls {
            let input: Json = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
            content
                .push(json!({"type": "tool_use", "id": ids::fresh("toolu_"), "name": name, "input": input}));
        }
        let Outcome { ending, usage } = &answer.outcome;
        self.message(content.into(), stop(ending), usage_json(usage))
    }
}

/// Why the answer ended, and the stop string if that is why.
fn stop(ending: &Ending) -> (Json, Json) {
    let reason = match ending {
        Ending::End => "end_turn",
        Ending::Calls => "tool_use",
        Ending::Length => "max_tokens",
        Ending::Context => "model_context_window_exceeded",
        Ending::Stop(text) => return ("stop_sequence".into(), text.clone().into()),
    };
    (reason.into(), Json::Null)
}

/// Anthropic counts tokens that were known before apart from those of the input.
fn usage_json(usage: &Usage) -> Json {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str) -> Piece {
        Piece::Call { name: name.into(), arguments: "{\"a\":1}".into() }
    }

    /// The types of all events, with those of blocks and deltas.
    fn types(events: &[Json]) -> Vec<String> {
        let part = |event: &Json, name: &str| event[name]["type"].as_str().map(str::to_string);
        (events.iter())
            .map(|event| {
                let inner = part(event, "content_block").or_else(|| part(event, "delta"));
                let index = event["index"].as_u64().map(|index| format!(" {index}")).unwrap_or_default();
                let inner = inner.map(|inner| format!(" {inner}")).unwrap_or_default();
                format!("{}{index}{inner}", event["type"].as_str().unwrap())
            })
            .collect()
    }

    #[test]
    fn blocks_come_in_the_documented_order() {
        let mut writer = Writer::new("m".into());
        let usage = Usage { prompt: 10, cached: 4, completion: 7, reasoning: 2 };
        let mut events = writer.opening(&Usage { prompt: 10, ..Usage::default() }).to_vec();
        for piece in [
            Piece::Reasoning("I ".into()),
            Piece::Reasoning("see".into()),
            Piece::Text("So".into()),
            Piece::Text(":".into()),
            call("look"),
            call("leap"),
        ] {
            events.extend(writer.event(Event::Part(piece, Vec::new())));
        }
        events.extend(writer.event(Event::Finished(Outcome { ending: Ending::Calls, usage })));
        assert_eq!(
            types(&events),
            [
                "message_start",
                "ping",
                "content_block_start 0 thinking",
                "content_block_delta 0 thinking_delta",
                "content_block_delta 0 thinking_delta",
                "content_block_delta 0 signature_delta",
                "content_block_stop 0",
                "content_block_start 1 text",
                "content_block_delta 1 text_delta",
                "content_block_delta 1 text_delta",
                "content_block_stop 1",
                "content_block_start 2 tool_use",
                "content_block_delta 2 input_json_delta",
                "content_block_stop 2",
                "content_block_start 3 tool_use",
                "content_block_delta 3 input_json_delta",
                "content_block_stop 3",
                "message_delta",
                "message_stop",
            ]
        );
        assert_eq!(events[0]["message"]["usage"]["input_tokens"], 10);
        let last = &events[events.len() - 2];
        assert_eq!(last["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
        assert_eq!(
            last["usage"],
            json!({
                "input_tokens": 6,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 4,
                "output_tokens": 7,
            })
        );
    }

    #[test]
    fn whole_answers_have_the_same_blocks() {
        let answer = Collected {
            reasoning: "Hm.".into(),
            text: "So".into(),
            calls: vec![("look".into(), "{\"a\":1}".into())],
            tokens: Vec::new(),
            outcome: Outcome { ending: Ending::Stop("END".into()), usage: Usage::default() },
        };
        let message = Writer::new("m".into()).whole(&answer);
        let kinds: Vec<&str> = message["content"]
            .as_array()
            .unwrap()
            .iter()
            .map(|block| block["type"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["thinking", "text", "tool_use"]);
        assert_eq!(message["content"][2]["input"], json!({"a": 1}));
        assert_eq!(
            (&message["stop_reason"], &message["stop_sequence"]),
            (&json!("stop_sequence"), &json!("END"))
        );
    }
}
