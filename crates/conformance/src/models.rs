//! Model fixtures: tiny checkpoints with the reference implementation's answers.

use std::path::{Path, PathBuf};

use backend::{Backend, CacheFloat};
use checkpoint::{Checkpoint, read_file};
use models::{Logits, Model, Request, State};

/// A checkpoint and what mlx-lm, run in f32, makes of it.
pub struct Fixture {
    /// Name of the folder.
    pub name: String,
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// A prompt.
    pub ids: Vec<u32>,
    /// Its logits `[ids, vocabulary]`.
    pub logits: Vec<f32>,
    /// The greedy continuation.
    pub greedy: Vec<u32>,
    /// Logits that chose the last token of it.
    pub last_logits: Vec<f32>,
    /// Logits of its drafting head, where it has one: for every token of the prompt but the last, and for a guess after the last of
    /// these guesses.
    pub drafts: Option<[Vec<f32>; 2]>,
}

/// The folder of fixtures in the repository.
pub fn fixtures_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// All fixtures, sorted by name.
pub fn fixtures() -> Vec<Fixture> {
    let folder = fixtures_folder();
    let entries = std::fs::read_dir(&folder).expect("the repository has a folder of fixtures");
    let mut folders: Vec<PathBuf> = entries.map(|e| e.expect("a readable folder").path()).collect();
    folders.retain(|f| f.join("expected.safetensors").is_file());
    folders.sort();
    folders.iter().map(|f| Fixture::open(f)).collect()
}

impl Fixture {
    /// Opens one fixture; a broken one is a broken repository.
    pub fn open(folder: &Path) -> Self {
        let expected = read_file(&folder.join("expected.safetensors")).expect("a fixture's answers");
        let words = |name: &str| expected[name].bytes.as_chunks().0.to_vec();
        let ids = |name| words(name).into_iter().map(u32::from_le_bytes).collect();
        let floats = |name| words(name).into_iter().map(f32::from_le_bytes).collect::<Vec<_>>();
        let drafting = expected.contains_key("draft_logits");
        Self {
            name: folder.file_name().expect("a folder name").to_string_lossy().into_owned(),
            checkpoint: Checkpoint::open(folder).expect("a fixture's checkpoint"),
            ids: ids("ids"),
            logits: floats("logits"),
            greedy: ids("greedy"),
            last_logits: floats("step_logits"),
            drafts: drafting.then(|| ["draft_logits", "draft_next"].map(floats)),
        }
    }
}

/// `|a - b| / |b|` in f64.
pub fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |v: f64| v * v;
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let norm: f64 = b.iter().map(|b| square(f64::from(*b))).sum();
    (difference / norm).sqrt()
}

/// Runs tokens through a state in chunks and returns all their logits.
pub fn logits_in_chunks<B: Backend>(
    model: &Model<B>,
    state: &mut State<B>,
    ids: &[u32],
    chunk: usize,
) -> models::Result<Vec<f32>> {
    let mut logits = Vec::new();
    for tokens in ids.chunks(chunk) {
        let rows = model.step(&mut [Request { tokens, state, logits: Logits::All }])?;
        logits.extend(model.backend().read(&rows.expect("logits were asked for"))?);
    }
    Ok(logits)
}

/// Logits of the drafting head for all tokens but the last, which it sees in chunks, and for a guess after the last of these guesses.
pub fn drafted_logits<B: Backend>(
    model: &Model<B>,
    ids: &[u32],
    chunk: usize,
) -> models::Result<[Vec<f32>; 2]> {
    let b = model.backend();
    let mut state = model.state(CacheFloat::F32)?;
    let mut request = [Request { tokens: ids, state: &mut state, logits: Logits::None }];
    let hidden = model.step_with_hidden(&mut request)?.hidden.expect("a drafting head");
    let mut state = model.draft_state(CacheFloat::F32)?.expect("a drafting head");
    let mut draft = |hidden: &B::Tensor, tokens: &[u32]| {
        let mut requests = [Request { tokens, state: &mut state, logits: Logits::All }];
        model.draft(hidden, &mut requests).map(|drafted| drafted.expect("logits were asked for"))
    };
    let (mut logits, mut after) = (Vec::new(), Vec::new());
    for (i, tokens) in ids[1..].chunks(chunk).enumerate() {
        let rows: Vec<usize> = (i * chunk..i * chunk + tokens.len()).collect();
        let drafted = draft(&b.select_rows(&hidden, &rows)?, tokens)?;
        logits.extend(b.read(&drafted.logits)?);
        if i * chunk + tokens.len() == ids.len() - 1 {
            let best = b.read_top(&drafted.logits, 1, &[])?[tokens.len() - 1][0].0;
            let last = b.select_rows(&drafted.hidden, &[tokens.len() - 1])?;
            after = b.read(&draft(&last, &[best])?.logits)?;
        }
    }
    Ok([logits, after])
}

/// Greedy continuation of a prompt: the tokens, and the logits that chose the last of them.
pub fn greedy<B: Backend>(
    model: &Model<B>,
    ids: &[u32],
    count: usize,
) -> models::Result<(Vec<u32>, Vec<f32>)> {
    let vocabulary = model.summary().vocabulary;
    let mut state = model.state(CacheFloat::F32)?;
    let mut logits = logits_in_chunks(model, &mut state, ids, ids.len())?;
    let mut chosen = Vec::new();
    loop {
        logits.drain(..logits.len() - vocabulary);
        let best = (0..vocabulary).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or(0) as u32;
        chosen.push(best);
        if chosen.len() == count {
            return Ok((chosen, logits));
        }
        logits = logits_in_chunks(model, &mut state, &[best], 1)?;
    }
}

/// Logits of a prompt in a fresh state.
pub fn fresh_logits<B: Backend>(model: &Model<B>, float: CacheFloat, ids: &[u32], chunk: usize) -> Vec<f32> {
    let mut state = model.state(float).expect("a state");
    logits_in_chunks(model, &mut state, ids, chunk).expect("logits")
}

/// What must hold for every fixture on every backend, in plain f32.
///
/// # Panics
/// All of these do where it does not.
pub mod checks {
    use super::*;

    /// mlx-lm's logits.
    pub fn logits<B: Backend>(fixture: &Fixture, model: &Model<B>) {
        let logits = fresh_logits(model, CacheFloat::F32, &fixture.ids, fixture.ids.len());
        let error = relative_error(&logits, &fixture.logits);
        println!("{:24} {error:.1e}", fixture.name);
        assert!(error < 1e-4, "{}: relative error {error:.1e}", fixture.name);
    }

    /// mlx-lm's greedy continuation.
    pub fn continuation<B: Backend>(fixture: &Fixture, model: &Model<B>) {
        let (ids, last) = greedy(model, &fixture.ids, fixture.greedy.len()).expect("a continuation");
        assert_eq!(ids, fixture.greedy, "{}", fixture.name);
        let error = relative_error(&last, &fixture.last_logits);
        assert!(error < 1e-4, "{}: relative error {error:.1e} of the last step", fixture.name);
    }

    /// What a head of mlx-lm's modules guesses, however its input is cut.
    pub fn drafts<B: Backend>(fixture: &Fixture, model: &Model<B>) {
        let Some(expected) = &fixture.drafts else { return };
        for chunk in [1, 7, 64] {
            let found = drafted_logits(model, &fixture.ids, chunk).expect("guesses");
            for (found, expected) in found.iter().zip(expected) {
                let error = relative_error(found, expected);
                println!("{:24} in chunks of {chunk} {error:.1e}", fixture.name);
                assert!(error < 2e-5, "{} in chunks of {chunk}: relative error {error:.1e}", fixture.name);
            }
        }
    }

    /// The same logits however the prompt is cut.
    pub fn chunks<B: Backend>(fixture: &Fixture, model: &Model<B>) {
        let whole = fresh_logits(model, CacheFloat::F32, &fixture.ids, fixture.ids.len());
        for chunk in [1, 7, 64] {
            let error = relative_error(&fresh_logits(model, CacheFloat::F32, &fixture.ids, chunk), &whole);
            assert!(error < 1e-5, "{} in chunks of {chunk}: {error:.1e}", fixture.name);
        }
    }

    /// States that were saved and loaded go on with the same bits.
    pub fn saved_states<B: Backend>(fixture: &Fixture, model: &Model<B>) {
        for float in [CacheFloat::F32, CacheFloat::F16, CacheFloat::Q8] {
            let (start, rest) = fixture.ids.split_at(fixture.ids.len() / 2);
            let mut state = model.state(float).expect("a state");
            logits_in_chunks(model, &mut state, start, 7).expect("logits");
            let image = state.image(model.backend()).expect("an image");
            let mut loaded = model.state_from(&image, float).expect("a state from its image");
            assert_eq!(loaded.len(), start.len());
            let expected = logits_in_chunks(model, &mut state, rest, 64).expect("logits");
            let found = logits_in_chunks(model, &mut loaded, rest, 64).expect("logits");
            assert_eq!(found, expected, "{} with {float:?} caches", fixture.name);
        }
    }

    /// Sequences in one batch do not meet.
    pub fn batches<B: Backend>(fixture: &Fixture, model: &Model<B>) {
        let vocabulary = model.summary().vocabulary;
        let prompts = [&fixture.ids[..], &fixture.ids[3..9], &fixture.ids[5..7], &fixture.ids[1..30]];
        let mut states = prompts.map(|_| model.state(CacheFloat::F32).expect("a state"));
        let mut step = |parts: [&[u32]; 4]| {
            let request = |(tokens, state)| Request { tokens, state, logits: Logits::Last };
            let mut requests: Vec<_> = parts.into_iter().zip(&mut states).map(request).collect();
            let rows = model.step(&mut requests).expect("a step").expect("logits were asked for");
            model.backend().read(&rows).expect("logits")
        };
        // Two steps: the second begins at a different position in each sequence.
        step(prompts.map(|ids| &ids[..ids.len() / 2]));
        let rows = step(prompts.map(|ids| &ids[ids.len() / 2..]));
        for (ids, row) in prompts.iter().zip(rows.chunks_exact(vocabulary)) {
            let alone = fresh_logits(model, CacheFloat::F32, ids, ids.len());
            let error = relative_error(row, &alone[alone.len() - vocabulary..]);
            assert!(error < 1e-5, "{}: {error:.1e}", fixture.name);
        }
    }
}
