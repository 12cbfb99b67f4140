//! What came back, and whether it is what was asked for.

use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::exercise::{Exercise, Form};
use crate::problem::{Problem, wrong};

/// What came back.
#[derive(Default)]
pub struct Answer {
    pub text: String,
    /// Names and arguments of calls.
    pub calls: Vec<(String, String)>,
    pub finish: Option<String>,
    pub usage: Json,
    /// Events with something of the answer in them.
    pub pieces: u64,
    /// From the request to the first of them, or to the end if there was none.
    pub first: Option<Duration>,
    /// Seconds from each to the next.
    pub gaps: Vec<f32>,
}

impl Answer {
    pub fn count(&self, name: &str) -> Result<u64, Problem> {
        self.usage[name]
            .as_u64()
            .ok_or_else(|| Problem::Wrong(format!("usage without {name}: {}", self.usage)))
    }

    /// Adds a message, or what a stream adds to one. Says whether there was anything in it.
    pub fn add(&mut self, message: &Json) -> Result<bool, Problem> {
        let mut something = false;
        for name in ["content", "reasoning_content"] {
            let text = message[name].as_str().unwrap_or_default();
            something |= !text.is_empty();
            if name == "content" {
                self.text.push_str(text);
            }
        }
        for (place, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
            let index = call["index"].as_u64().map_or(place, |index| index as usize);
            if index > self.calls.len() {
                return wrong(format!("call {index} comes after {} calls", self.calls.len()));
            }
            if index == self.calls.len() {
                self.calls.push(Default::default());
            }
            self.calls[index].0.push_str(call["function"]["name"].as_str().unwrap_or_default());
            self.calls[index].1.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
            something = true;
        }
        Ok(something)
    }

    /// Adds an event of a stream.
    pub fn event(&mut self, event: &Json, asked: Instant, last: &mut Instant) -> Result<(), Problem> {
        if !event["error"].is_null() {
            return wrong(format!("an error within a stream: {event}"));
        }
        if !event["usage"].is_null() {
            self.usage = event["usage"].clone();
        }
        let Some(choice) = event["choices"].get(0) else { return Ok(()) };
        if self.finish.is_some() {
            return wrong(format!("an event after the end: {event}"));
        }
        let now = Instant::now();
        if self.add(&choice["delta"])? {
            if self.first.is_none() {
                self.first = Some(now - asked);
            } else {
                self.gaps.push((now - *last).as_secs_f32());
            }
            *last = now;
            self.pieces += 1;
        }
        self.finish = choice["finish_reason"].as_str().map(str::to_string);
        Ok(())
    }

    pub fn shown(&self) -> String {
        format!("{:?}, calls {:?}, finish {:?}, usage {}", self.text, self.calls, self.finish, self.usage)
    }

    /// Whether the answer is complete and what was asked for.
    pub fn check(&self, exercise: &Exercise) -> Result<(), Problem> {
        let [prompt, tokens, total] =
            ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| self.count(name));
        let (prompt, tokens, total) = (prompt?, tokens?, total?);
        let finish = self.finish.as_deref().unwrap_or("missing");
        let unless = |good: bool, message: &str| if good { Ok(()) } else { wrong(message) };
        unless(total == prompt + tokens && prompt > 0, "usage does not add up")?;
        unless(tokens <= exercise.max_tokens, "more tokens than allowed")?;
        unless(self.pieces <= tokens + 1, "more pieces than tokens")?;
        unless(tokens > 0 || self.text.is_empty(), "text without tokens")?;
        match finish {
            "length" => {
                unless(tokens == exercise.max_tokens, "ended by length before the length was reached")?
            }
            "tool_calls" => unless(!self.calls.is_empty(), "ended by calls, but there is none")?,
            "stop" => {}
            _ => return wrong(format!("finish_reason is {finish}")),
        }
        let whole = finish != "length";
        match exercise.form {
            Form::Plain => unless(self.calls.is_empty(), "a call without tools"),
            Form::Stop => {
                let stops = exercise.body["stop"].as_array().into_iter().flatten().filter_map(Json::as_str);
                unless(
                    !stops.into_iter().any(|stop| self.text.contains(stop)),
                    "the stop string is in the answer",
                )
            }
            Form::Schema if whole => {
                let thing: Json = serde_json::from_str(&self.text)?;
                let good = thing["name"].is_string()
                    && thing["count"].as_u64().is_some_and(|count| count < 100)
                    && thing["tags"].as_array().is_some_and(|tags| tags.len() <= 3);
                unless(good, "the answer does not fit its schema")
            }
            Form::Tools { forced } if whole => {
                unless(!forced || finish == "tool_calls", "no call although one was required")?;
                for (name, arguments) in &self.calls {
                    let arguments: Json = serde_json::from_str(arguments)?;
                    unless(name == "weather" && arguments["place"].is_string(), "a wrong call")?;
                }
                Ok(())
            }
            Form::Schema | Form::Tools { .. } => Ok(()),
        }
    }
}
