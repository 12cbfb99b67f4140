//! Requests of many kinds.

use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::random::Random;

/// Cancelled requests, in percent.
const CANCELLED: u64 = 5;

/// What is asked for beside text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    Stop,
    Schema,
    /// Tools that may be called, or one that must.
    Tools {
        forced: bool,
    },
}

/// Which requests are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Of every kind the server knows: more than twice as many tokens of prompts as of answers.
    All,
    /// What a page to chat with asks: short questions, long answers, always streamed.
    Chat,
}

pub struct Exercise {
    pub body: Json,
    pub form: Form,
    pub max_tokens: u64,
    /// When the client goes away.
    pub cancelled: Option<Duration>,
}

pub const ANIMALS: [&str; 8] = ["fox", "whale", "sparrow", "turtle", "wolf", "bee", "horse", "spider"];
pub const PLACES: [&str; 8] =
    ["forest", "harbour", "desert", "library", "mountain", "kitchen", "garden", "station"];
pub const THINGS: [&str; 8] = ["lantern", "bridge", "letter", "clock", "boat", "mirror", "apple", "violin"];
pub const STOPS: [&str; 5] = [".", " the", "\n", "and", "e"];

pub fn exercise(mix: Mix, random: &mut Random) -> Exercise {
    match mix {
        Mix::All => any(random),
        Mix::Chat => chat(random),
    }
}

/// A question with an answer of 100 to 200 tokens, chosen as the model recommends.
fn chat(random: &mut Random) -> Exercise {
    let animal = random.pick(&ANIMALS);
    let prompt = match random.below(2) {
        0 => format!("Tell me a story about a {animal} in a {}.", random.pick(&PLACES)),
        _ => format!("Tell me a long story about a {animal} and a {}.", random.pick(&THINGS)),
    };
    let max_tokens = 200;
    let body = json!({
        "model": "any",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "seed": random.below(1 << 32),
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    Exercise { body, form: Form::Plain, max_tokens, cancelled: cancelled(random) }
}

fn cancelled(random: &mut Random) -> Option<Duration> {
    random.percent(CANCELLED).then(|| {
        let longest = 1 << random.between(6, 11);
        Duration::from_millis(random.between(10, longest))
    })
}

fn any(random: &mut Random) -> Exercise {
    let prompt = match random.below(5) {
        0 => format!("What is {} + {}?", random.between(1, 99), random.between(1, 99)),
        1 => format!("Tell me a story about a {} in a {}.", random.pick(&ANIMALS), random.pick(&PLACES)),
        2 => format!("Write a short poem about a {} and a {}.", random.pick(&ANIMALS), random.pick(&THINGS)),
        3 => format!("Name {} things that you find in a {}.", random.between(2, 9), random.pick(&PLACES)),
        _ => {
            let count = random.between(20, 200);
            format!("Sum this up in one sentence. {}", prose(random, count as usize))
        }
    };
    let form = match random.below(20) {
        0..12 => Form::Plain,
        12..15 => Form::Stop,
        15..18 => Form::Schema,
        _ => Form::Tools { forced: random.percent(50) },
    };
    let max_tokens = random.between(16, 200);
    let mut body = json!({
        "model": "any",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": if random.percent(30) { 0.0 } else { 0.8 },
        "seed": random.below(1 << 32),
    });
    if random.percent(75) {
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
    }
    match form {
        Form::Plain => {}
        Form::Stop => body["stop"] = json!([random.pick(&STOPS), "STOP"]),
        Form::Schema => {
            let schema = json!({
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 20},
                    "count": {"type": "integer", "minimum": 0, "maximum": 99},
                    "tags": {"type": "array", "items": {"enum": ["small", "large", "old"]}, "maxItems": 3},
                },
                "required": ["name", "count", "tags"],
                "additionalProperties": false,
            });
            let named = json!({"name": "thing", "strict": true, "schema": schema});
            body["response_format"] = json!({"type": "json_schema", "json_schema": named});
        }
        Form::Tools { forced } => {
            let parameters = json!({
                "type": "object",
                "properties": {"place": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
                "required": ["place"],
                "additionalProperties": false,
            });
            let function =
                json!({"name": "weather", "description": "Weather at a place", "parameters": parameters});
            body["tools"] = json!([{"type": "function", "function": function}]);
            if forced {
                body["tool_choice"] = "required".into();
            }
        }
    }
    Exercise { body, form, max_tokens, cancelled: cancelled(random) }
}

/// Sentences of so many words that never come twice in the same order.
pub fn prose(random: &mut Random, words: usize) -> String {
    let mut text = String::new();
    let mut written = 0;
    while written < words {
        let (animal, thing, place) = (random.pick(&ANIMALS), random.pick(&THINGS), random.pick(&PLACES));
        let number = random.between(2, 9999);
        text.push_str(&format!("The {animal} number {number} took a {thing} to the {place}. "));
        written += 10;
    }
    text
}
