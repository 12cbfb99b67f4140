//! What the form of an answer costs, beside free answers as long.

use serde_json::{Value as Json, json};
use tokio::time::timeout;

use crate::ask::ask;
use crate::http::Connection;
use crate::numbers::{quantile, rounded};
use crate::options::Options;
use crate::problem::Problem;

/// Tokens of an answer at most, and least for which its pace is a measure.
const TOKENS: u64 = 200;
const FEWEST: u64 = 40;

/// Microseconds from each token of an answer to the next, and how many there were.
async fn pace(
    options: &Options,
    connection: &mut Option<Connection>,
    (question, form): (&str, &Json),
    (seed, most): (usize, u64),
) -> Result<(f64, u64), Problem> {
    let mut body = json!({
        "model": "any",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": most,
        "seed": seed,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    for (name, value) in form.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let answer = timeout(options.patience, ask(options, connection, &body)).await;
    let answer = answer.map_err(|_| Problem::Stuck("an answer".into()))??;
    let tokens = answer.count("completion_tokens")?;
    let time: f32 = answer.gaps.iter().sum();
    Ok((f64::from(time) * 1e6 / tokens.saturating_sub(1).max(1) as f64, tokens))
}

/// Kinds of answers in turn, so that what else the machine does falls on all alike; how long tokens of each take, and how much more than those of free answers.
pub async fn forms(options: &Options) -> Result<bool, Problem> {
    let animal = json!({"type": "object", "additionalProperties": false, "required": ["name", "age", "kind"], "properties": {
        "name": {"type": "string"}, "age": {"type": "integer"}, "kind": {"enum": ["bird", "fish", "cat"]}}});
    let list = json!({"type": "array", "minItems": 50, "items": animal});
    let text = json!({"type": "string", "minLength": 1200});
    let story = json!({"type": "object", "additionalProperties": false, "required": ["story"], "properties": {"story": text}});
    let schema = |schema: Json| {
        let named = json!({"name": "answer", "strict": true, "schema": schema});
        json!({"response_format": {"type": "json_schema", "json_schema": named}})
    };
    let kinds = [
        ("free", json!({})),
        ("free, all tokens", json!({"top_k": 0})),
        ("any text", json!({"regex": "(?s:.*)"})),
        ("a text of letters", json!({"regex": "[A-Za-z ,.]{2000}"})),
        ("a list of objects", schema(list)),
        ("an object with a long text", schema(story)),
    ];
    let questions = [
        "Tell me a story about a fox in a forest.",
        "Write a few sentences about the sea.",
        "Tell me a long story.",
    ];
    let mut connection = None;
    let mut times = vec![Vec::new(); kinds.len()];
    let mut left_out = 0;
    for round in 0..=options.rounds {
        let question = questions[round % questions.len()];
        let (_, most) = pace(options, &mut connection, (question, &kinds[0].1), (round, TOKENS)).await?;
        for i in 0..kinds.len() {
            // Who goes first changes from round to round.
            let kind = (i + round) % kinds.len();
            let form = (question, &kinds[kind].1);
            let (time, tokens) = pace(options, &mut connection, form, (round, most)).await?;
            // The first round warms up.
            match round {
                0 => {}
                _ if tokens < FEWEST => left_out += 1,
                _ => times[kind].push(time as f32),
            }
        }
    }
    println!(
        "{left_out} answers were too short to count; us per token in quiet moments (a tenth, a quarter of all answers) and in the middle:"
    );
    let parts = [0.1, 0.25, 0.5];
    let quantiles: Vec<[f64; 3]> = times
        .iter_mut()
        .map(|times| parts.map(|part| quantile(times, part).as_f64().unwrap_or(f64::NAN)))
        .collect();
    let mut report = serde_json::Map::new();
    for ((name, _), own) in kinds.iter().zip(&quantiles) {
        let more: [f64; 3] = std::array::from_fn(|i| 100.0 * (own[i] / quantiles[0][i] - 1.0));
        let shown: Vec<String> =
            own.iter().zip(more).map(|(us, more)| format!("{us:.0} ({more:+.1}%)")).collect();
        println!("{name}: {}", shown.join(", "));
        report.insert((*name).into(), json!(more.map(rounded)));
    }
    println!("{}", Json::Object(report));
    Ok(true)
}
