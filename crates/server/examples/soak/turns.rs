//! What the second turn of a long chat costs.

use serde_json::{Value as Json, json};
use tokio::time::timeout;

use crate::answer::Answer;
use crate::ask::ask;
use crate::exercise::prose;
use crate::http::get;
use crate::numbers::quantile;
use crate::options::Options;
use crate::problem::Problem;
use crate::random::Random;

/// The time to the first token of the next answer, the answer, and the tokens of its prompt.
async fn turn(options: &Options, messages: &[Json]) -> Result<(f64, Answer, u64), Problem> {
    let body = json!({
        "model": "any",
        "messages": messages,
        "max_tokens": 16,
        "temperature": 0,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    let mut fresh = None;
    let answer = timeout(options.patience, ask(options, &mut fresh, &body)).await;
    let answer = answer.map_err(|_| Problem::Stuck("a turn".into()))??;
    let tokens = answer.count("prompt_tokens")?;
    Ok((answer.first.unwrap_or_default().as_secs_f64(), answer, tokens))
}

fn said(role: &str, content: &str) -> Json {
    json!({"role": role, "content": content})
}

/// A second turn with its history known, beside a chat as long that nobody has seen.
pub async fn turns(options: &Options, wanted: usize) -> Result<bool, Problem> {
    let models: Json = serde_json::from_str(&get(options, "/v1/models").await?)?;
    let context = models["data"][0]["max_model_len"].as_u64().map_or(usize::MAX, |context| context as usize);
    let tokens = wanted.min(context / 10 * 9);
    if tokens < wanted {
        println!("the context holds {context} tokens: chats of {tokens} instead of {wanted}");
    }
    let mut random = Random(options.seed);
    let sample = prose(&mut random, 200);
    let (_, _, sampled) = turn(options, &[said("user", &sample)]).await?;
    let per_token = 200.0 / sampled as f64;
    let mut ratios = Vec::new();
    for _ in 0..options.rounds {
        let mut text = || prose(&mut random, (tokens as f64 * per_token) as usize);
        let (known, fresh) = (text(), text());
        let question = "And what happened then?";
        let (first, answer, _) = turn(options, &[said("user", &known)]).await?;
        let chat = |text: &str| [said("user", text), said("assistant", &answer.text), said("user", question)];
        let (second, again, second_tokens) = turn(options, &chat(&known)).await?;
        let (fresh, _, fresh_tokens) = turn(options, &chat(&fresh)).await?;
        let cached = again.usage["prompt_tokens_details"]["cached_tokens"].clone();
        println!(
            "first turn {first:.3} s, second {second:.3} s ({second_tokens} tokens, {cached} cached), \
             fresh chat {fresh:.3} s ({fresh_tokens} tokens), ratio {:.1}",
            fresh / second
        );
        ratios.push((fresh / second) as f32);
    }
    println!(
        "{}",
        json!({"tokens": tokens, "rounds": options.rounds, "ratio_p50": quantile(&mut ratios, 0.5)})
    );
    Ok(true)
}
