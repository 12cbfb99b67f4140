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

/// Kinds of answers in turn, so that what else the machine does falls on all alike; each is compared with the free answer of its round.
pub async fn forms(options: &Options) -> Result<bool, Problem> {
    let animal = json!({"type": "object", "additionalProperties": false, "required": ["name", "age", "kind"], "properties": {
        "name": {"type": "string"}, "age": {"type": "integer"}, "kind": {"enum": ["bird", "fish", "cat"]}}});
    let list = json!({"type": "array", "minItems": 50, "items": animal});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "animals", "schema": list, "strict": true}});
    let kinds = [
        ("free", json!({})),
        ("free, all tokens", json!({"top_k": 0})),
        ("any text", json!({"regex": "(?s:.*)"})),
        ("a text of letters", json!({"regex": "[A-Za-z ,.]{2000}"})),
        ("a list of objects", json!({"response_format": format})),
    ];
    let questions = [
        "Tell me a story about a fox in a forest.",
        "Write a few sentences about the sea.",
        "Tell me a long story.",
    ];
    let mut connection = None;
    let mut ratios = vec![Vec::new(); kinds.len()];
    let (mut paces, mut left_out) = (Vec::new(), 0);
    for round in 0..=options.rounds {
        let question = questions[round % questions.len()];
        let (free, most) = pace(options, &mut connection, (question, &kinds[0].1), (round, TOKENS)).await?;
        for i in 0..kinds.len() {
            // Who goes first changes from round to round.
            let kind = (i + round) % kinds.len();
            let (time, tokens) =
                pace(options, &mut connection, (question, &kinds[kind].1), (round, most)).await?;
            // The first round warms up.
            if round == 0 || most < FEWEST || tokens < FEWEST {
                left_out += usize::from(round > 0);
                continue;
            }
            ratios[kind].push((time / free) as f32);
            if kind == 0 {
                paces.push(time as f32);
            }
        }
    }
    println!(
        "free answers: {} us per token in the middle; {left_out} answers were too short to count",
        quantile(&mut paces, 0.5)
    );
    let mut report = serde_json::Map::new();
    for ((name, _), ratios) in kinds.iter().zip(&mut ratios) {
        let [low, middle, high] =
            [0.25, 0.5, 0.75].map(|part| quantile(ratios, part).as_f64().unwrap_or(f64::NAN));
        let percent = |ratio: f64| 100.0 * (ratio - 1.0);
        println!(
            "{name}: {:+.1}% ({:+.1} to {:+.1}), {} answers",
            percent(middle),
            percent(low),
            percent(high),
            ratios.len()
        );
        report.insert((*name).into(), rounded(middle));
    }
    println!("{}", Json::Object(report));
    Ok(true)
}
