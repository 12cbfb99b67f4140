//! One client alone, then many.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use tokio::task::LocalSet;
use tokio::time::{sleep, sleep_until};

use crate::client::{Seen, client};
use crate::http::get;
use crate::memory::{MOST_GROWTH, Memory, growth, memory};
use crate::numbers::{quantile, rounded};
use crate::options::Options;
use crate::problem::{Problem, wrong};

/// So many clients for so long.
async fn phase(
    options: &Rc<Options>,
    clients: usize,
    seconds: f64,
    samples: Rc<RefCell<Vec<Memory>>>,
) -> Seen {
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(seconds);
    let seen = Rc::new(RefCell::new(Seen::default()));
    let all = LocalSet::new();
    for index in 0..clients {
        let (options, seen) = (options.clone(), seen.clone());
        let seed = options.seed.wrapping_mul(0x5851_F42D).wrapping_add(index as u64);
        all.spawn_local(async move { client(&options, seed, end, &seen).await });
    }
    let watch = {
        let (options, seen) = (options.clone(), seen.clone());
        all.run_until(async move {
            let mut tokens = 0;
            for second in 1..=seconds as u64 {
                sleep_until((start + Duration::from_secs(second)).into()).await;
                let sample = memory(&options, second as f64).await;
                samples.borrow_mut().extend(sample);
                if second.is_multiple_of(10) {
                    let seen = seen.borrow();
                    let rate = (seen.tokens - tokens) as f64 / 10.0;
                    tokens = seen.tokens;
                    let megabytes = sample.map_or("?".into(), |sample| format!("{:.1}", sample.resident / 1e6));
                    let (requests, errors) = (seen.requests, seen.errors());
                    println!("{second:5} s {requests:7} requests {rate:8.1} tokens/s {megabytes:>9} MB {errors:5} errors");
                }
            }
        })
    };
    watch.await;
    all.await;
    Rc::try_unwrap(seen).map(RefCell::into_inner).unwrap_or_default()
}

/// Whether the server has forgotten all requests soon after the last client went away.
pub async fn idle(options: &Options) -> Result<(), Problem> {
    let mut health = String::new();
    for _ in 0..30 {
        health = get(options, "/health").await?;
        let json: Json = serde_json::from_str(&health)?;
        if ["running", "waiting"].iter().all(|name| json[*name].as_u64().unwrap_or(0) == 0) {
            return Ok(());
        }
        sleep(Duration::from_secs(1)).await;
    }
    wrong(format!("30 s after the last request there are still some: {health}"))
}

pub async fn soak(options: Rc<Options>) -> Result<bool, Problem> {
    get(&options, "/health").await?;
    println!("one client");
    let mut one = phase(&options, 1, options.alone_seconds, Rc::default()).await;
    println!("{} clients", options.clients);
    let samples = Rc::new(RefCell::new(Vec::new()));
    let mut all = phase(&options, options.clients, options.seconds, samples.clone()).await;
    let left = idle(&options).await;
    if let Err(problem) = &left {
        eprintln!("{problem}");
    }
    let samples = samples.take();
    let growth = [
        growth(&samples, |memory| memory.resident),
        growth(&samples, |memory| memory.resident - memory.kept),
    ];
    let grew = growth[1].is_some_and(|growth| growth > MOST_GROWTH);
    let one_rate = one.tokens_within / options.alone_seconds;
    let rate = all.tokens_within / options.seconds;
    let refused = one.refused + all.refused;
    let errors = one.errors() + all.errors() + u64::from(left.is_err());
    let good = errors == 0 && !grew && (refused == 0 || options.allow_refused) && all.requests > 0;
    let megabytes = |bytes: Option<f64>| bytes.map_or(Json::Null, |bytes| rounded(bytes / 1e6));
    let part = |part: Option<f64>| part.map_or(Json::Null, rounded);
    let result = json!({
        "good": good,
        "clients": options.clients,
        "seconds": options.seconds,
        "requests": all.requests,
        "finishes": all.finishes,
        "cancelled": all.cancelled,
        "errors": errors,
        "stuck": one.stuck + all.stuck,
        "refused": refused,
        "tokens_per_second": rounded(rate),
        "one_tokens_per_second": rounded(one_rate),
        "ratio": rounded(rate / one_rate),
        "first_token_p50": quantile(&mut all.first, 0.5),
        "first_token_p99": quantile(&mut all.first, 0.99),
        "gap_p50": quantile(&mut all.gaps, 0.5),
        "gap_p99": quantile(&mut all.gaps, 0.99),
        "one_first_token_p50": quantile(&mut one.first, 0.5),
        "one_gap_p99": quantile(&mut one.gaps, 0.99),
        "resident_mb_first": megabytes(samples.first().map(|memory| memory.resident)),
        "resident_mb_last": megabytes(samples.last().map(|memory| memory.resident)),
        "kept_mb_last": megabytes(samples.last().map(|memory| memory.kept)),
        "growth": part(growth[0]),
        "growth_without_kept": part(growth[1]),
    });
    println!("{result}");
    Ok(good)
}
