//! Answers of a given form, by the model in the box: whatever is asked of the backend, the largest logits of allowed tokens or all of them, the same
//! tokens are chosen, and only allowed ones.

use std::path::{Path, PathBuf};
use std::time::Duration;

use backend::Backend;
use checkpoint::Checkpoint;
use cpu::Cpu;
use engine::{
    Engine, EngineOptions, Finish, Grammar, Grammars, Job, SamplingParams, Scheduler, SchedulerOptions,
    Tokenizer, Update, Updates,
};
use models::Model;
use serde_json::{Value as Json, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../box/model")
}

/// A model that answers.
struct Storyteller {
    tokenizer: Tokenizer,
    grammars: Grammars,
    scheduler: Scheduler,
}

/// What is asked of it.
#[derive(Clone)]
struct Asked {
    form: Grammar,
    sampling: SamplingParams,
    tokens: usize,
    /// With these all logits are read.
    logprobs: bool,
}

impl Storyteller {
    fn open<B: Backend + Send>(backend: B, speculate: bool) -> Self {
        let tokenizer = Tokenizer::open(&folder()).unwrap();
        let model = Model::load(&Checkpoint::open(&folder()).unwrap(), backend).unwrap();
        let grammars = Grammars::new(&tokenizer, model.summary().vocabulary);
        let engine = Engine::new(model, &EngineOptions::default()).unwrap();
        let options = SchedulerOptions { speculate, prefix_memory: 0, ..SchedulerOptions::default() };
        Self { tokenizer, grammars, scheduler: Scheduler::start(engine, options).unwrap() }
    }

    fn ask(&self, asked: &Asked) -> Updates {
        let (listener, updates) = Updates::new();
        let text = "Tell me a story. Tell me a story. Tell me";
        let job = Job {
            max_tokens: Some(asked.tokens),
            end_ids: self.tokenizer.eos_ids().to_vec(),
            sampling: asked.sampling.clone(),
            constraint: Some(self.grammars.constraint(&asked.form).unwrap()),
            logprobs: asked.logprobs.then_some(0),
            ..Job::new(self.tokenizer.encode(text, false).unwrap(), listener)
        };
        assert!(self.scheduler.submit(job).is_ok());
        updates
    }

    fn hear(updates: &Updates) -> (Vec<u32>, Finish) {
        let mut ids = Vec::new();
        loop {
            match updates.wait_for(Duration::from_secs(120)).expect("an update") {
                Update::Token(token) => ids.push(token.id),
                Update::Finished(finish, _) => return (ids, finish),
                Update::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
    }

    fn answer(&self, asked: &Asked) -> (Vec<u32>, Finish) {
        Self::hear(&self.ask(asked))
    }
}

/// Nearly everything allowed, few tokens, and a mixture.
fn forms() -> [Grammar; 4] {
    let schema = json!({"type": "array", "minItems": 2, "maxItems": 3, "items": {
        "type": "object", "additionalProperties": false, "required": ["kind", "age"],
        "properties": {"kind": {"enum": ["bird", "fish"]}, "age": {"type": "integer"}}}});
    [
        Grammar::Regex("(?s:.*)".into()),
        Grammar::Regex("[0-9]{30}".into()),
        Grammar::JsonSchema(schema),
        Grammar::JsonObject,
    ]
}

fn samplings() -> [SamplingParams; 3] {
    let seeded = SamplingParams { seed: Some(5), temperature: 0.8, top_k: 40, ..SamplingParams::default() };
    [SamplingParams::greedy(), SamplingParams { top_k: 0, ..seeded.clone() }, seeded]
}

#[test]
fn the_largest_of_the_allowed_are_enough() {
    for speculate in [false, true] {
        let model = Storyteller::open(Cpu::new(cpu::Options::default()).unwrap(), speculate);
        let asked: Vec<Asked> = forms()
            .into_iter()
            .flat_map(|form| {
                samplings().map(|sampling| Asked {
                    form: form.clone(),
                    sampling,
                    tokens: 60,
                    logprobs: false,
                })
            })
            .collect();
        let alone: Vec<_> = asked.iter().map(|asked| model.answer(asked)).collect();
        for (asked, answer) in asked.iter().zip(&alone) {
            let by_all = model.answer(&Asked { logprobs: true, ..asked.clone() });
            assert_eq!(&by_all, answer, "{:?} {:?}", asked.form, asked.sampling);
        }
        // Beside each other, some allowed everything and some little; guesses are a matter of company.
        let together: Vec<_> = asked.iter().map(|asked| model.ask(asked)).collect();
        for (i, (updates, (alone, _))) in together.iter().zip(&alone).enumerate() {
            let (ids, finish) = Storyteller::hear(updates);
            let text = model.tokenizer.decode(&ids, true).unwrap();
            match &asked[i].form {
                Grammar::Regex(digits) if digits.starts_with('[') => {
                    assert!(text.chars().all(|c| c.is_ascii_digit()), "{text}");
                }
                Grammar::JsonSchema(_) if finish == Finish::End => {
                    let list: Vec<Json> = serde_json::from_str(&text).unwrap();
                    assert!((2..=3).contains(&list.len()) && list.iter().all(|item| item["age"].is_i64()));
                }
                _ => assert!(!ids.is_empty() && !alone.is_empty()),
            }
        }
    }
}

/// There the likeliest token would be chosen by the device, if it were not for the form. A machine without any adapter skips this.
#[test]
fn a_device_chooses_only_what_is_allowed() {
    let Some(gpu) = crate::devices::chained() else { return };
    let model = Storyteller::open(gpu, false);
    for sampling in samplings() {
        let form = Grammar::Regex("[0-9]{30}".into());
        let (ids, _) = model.answer(&Asked { form, sampling, tokens: 12, logprobs: false });
        let text = model.tokenizer.decode(&ids, true).unwrap();
        assert!(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()), "{text}");
    }
}
