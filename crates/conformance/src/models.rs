//! Model fixtures: tiny checkpoints with the reference implementation's answers.

use std::path::{Path, PathBuf};

use backend::pool::{Pool, Slot};
use backend::{Backend, CacheFloat, Choice, Error, Handle, Tokens};
use checkpoint::{Checkpoint, read_file};
use models::{Logits, Model, Request, Result};

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

/// More than any test takes.
pub const BUDGET: u64 = 1 << 40;

/// A model and a pool for its sequences, without a limit.
pub struct Sequences<'a, B: Backend> {
    /// The model.
    pub model: &'a Model<B>,
    /// What its sequences keep.
    pub pool: Pool<B>,
}

fn full() -> models::Error {
    Error::OutOfMemory("the pool of a test is full".into()).into()
}

impl<'a, B: Backend> Sequences<'a, B> {
    /// No sequence yet.
    pub fn new(model: &'a Model<B>, float: CacheFloat) -> Result<Self> {
        Ok(Self { model, pool: model.pool(float, BUDGET)? })
    }

    /// One that has seen nothing.
    pub fn create(&mut self) -> Result<Slot> {
        self.pool.create(self.model.backend())?.ok_or_else(full)
    }

    /// Makes room for a step and runs it.
    pub fn step(&mut self, requests: &[Request<'_>]) -> Result<Option<B::Tensor>> {
        reserve(self.model.backend(), &mut self.pool, requests)?;
        self.model.step(&mut self.pool, requests)
    }

    /// The next tokens of a sequence in chunks; returns all their logits.
    pub fn logits(&mut self, slot: Slot, ids: &[u32], chunk: usize) -> Result<Vec<f32>> {
        let mut logits = Vec::new();
        for ids in ids.chunks(chunk) {
            let request = Request { slot, tokens: Tokens::Ids(ids), logits: Logits::All };
            let rows = self.step(&[request])?.expect("logits were asked for");
            logits.extend(self.model.backend().read(&rows)?);
        }
        Ok(logits)
    }
}

/// Makes room in a pool for the tokens of a step.
pub fn reserve<B: Backend>(b: &B, pool: &mut Pool<B>, requests: &[Request<'_>]) -> Result<()> {
    for request in requests {
        let tokens = match request.tokens {
            Tokens::Ids(ids) => ids.len(),
            Tokens::Last => 1,
        };
        if !pool.reserve(b, request.slot, tokens)? {
            return Err(full());
        }
    }
    Ok(())
}

/// Waits, and returns the most likely token of each row of logits.
pub fn likeliest<B: Backend>(b: &B, logits: &B::Tensor, pool: &mut Pool<B>) -> Result<Vec<u32>> {
    let choices = vec![Choice::LIKELIEST; logits.shape().rows];
    let sampled = b.collect(b.submit(Some(logits), &choices, pool.slabs_mut())?)?;
    Ok(sampled.iter().map(|sampled| sampled.token).collect())
}

/// Logits of the drafting head for all tokens but the last, which it sees in chunks, and for a guess after the last of these guesses.
pub fn drafted_logits<B: Backend>(model: &Model<B>, ids: &[u32], chunk: usize) -> Result<[Vec<f32>; 2]> {
    let b = model.backend();
    let mut sequences = Sequences::new(model, CacheFloat::F32)?;
    let request = [Request { slot: sequences.create()?, tokens: Tokens::Ids(ids), logits: Logits::None }];
    reserve(b, &mut sequences.pool, &request)?;
    let hidden = model.step_with_hidden(&mut sequences.pool, &request)?.hidden.expect("a drafting head");
    let mut pool = model.draft_pool(CacheFloat::F32, BUDGET)?.expect("a drafting head");
    let slot = pool.create(b)?.ok_or_else(full)?;
    let mut draft = |hidden: &B::Tensor, tokens: &[u32]| {
        let request = [Request { slot, tokens: Tokens::Ids(tokens), logits: Logits::All }];
        reserve(b, &mut pool, &request)?;
        model.draft(&mut pool, hidden, &request).map(|drafted| drafted.expect("logits were asked for"))
    };
    let (mut logits, mut after) = (Vec::new(), Vec::new());
    for (i, tokens) in ids[1..].chunks(chunk).enumerate() {
        let rows: Vec<usize> = (i * chunk..i * chunk + tokens.len()).collect();
        let drafted = draft(&b.select_rows(&hidden, &rows)?, tokens)?;
        logits.extend(b.read(&drafted.logits)?);
        if i * chunk + tokens.len() == ids.len() - 1 {
            let best = likeliest(b, &drafted.logits, &mut sequences.pool)?[tokens.len() - 1];
            let last = b.select_rows(&drafted.hidden, &[tokens.len() - 1])?;
            after = b.read(&draft(&last, &[best])?.logits)?;
        }
    }
    Ok([logits, after])
}

/// Greedy continuation of a prompt: the tokens, and the logits that chose the last of them.
pub fn greedy<B: Backend>(model: &Model<B>, ids: &[u32], count: usize) -> Result<(Vec<u32>, Vec<f32>)> {
    let vocabulary = model.summary().vocabulary;
    let mut sequences = Sequences::new(model, CacheFloat::F32)?;
    let slot = sequences.create()?;
    let mut logits = sequences.logits(slot, ids, ids.len())?;
    let mut chosen = Vec::new();
    loop {
        logits.drain(..logits.len() - vocabulary);
        let best = (0..vocabulary).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or(0) as u32;
        chosen.push(best);
        if chosen.len() == count {
            return Ok((chosen, logits));
        }
        logits = sequences.logits(slot, &[best], 1)?;
    }
}

/// Logits of a prompt in a fresh sequence.
pub fn fresh_logits<B: Backend>(model: &Model<B>, float: CacheFloat, ids: &[u32], chunk: usize) -> Vec<f32> {
    let mut sequences = Sequences::new(model, float).expect("a pool");
    let slot = sequences.create().expect("a sequence");
    sequences.logits(slot, ids, chunk).expect("logits")
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

    /// Sequences that were saved and loaded go on with the same bits.
    pub fn saved_states<B: Backend>(fixture: &Fixture, model: &Model<B>) {
        for float in [CacheFloat::F32, CacheFloat::F16, CacheFloat::Q8] {
            let (start, rest) = fixture.ids.split_at(fixture.ids.len() / 2);
            let mut sequences = Sequences::new(model, float).expect("a pool");
            let slot = sequences.create().expect("a sequence");
            sequences.logits(slot, start, 7).expect("logits");
            let image = sequences.pool.save(model.backend(), slot).expect("an image");
            let loaded = sequences.pool.load(model.backend(), &image).expect("an image that fits");
            let loaded = loaded.expect("room");
            assert_eq!(sequences.pool.len(loaded), start.len());
            let expected = sequences.logits(slot, rest, 64).expect("logits");
            let found = sequences.logits(loaded, rest, 64).expect("logits");
            assert_eq!(found, expected, "{} with {float:?} caches", fixture.name);
        }
    }

    /// Forks go on as if each were alone, in one step with others, whatever becomes of what was
    /// forked; and so does a sequence that was cut back, where it can be.
    pub fn forks<B: Backend>(fixture: &Fixture, model: &Model<B>) {
        let (ids, half) = (&fixture.ids[..], fixture.ids.len() / 2);
        let mut sequences = Sequences::new(model, CacheFloat::F32).expect("a pool");
        let slot = sequences.create().expect("a sequence");
        sequences.logits(slot, &ids[..half], 64).expect("logits");
        let fork = |sequences: &mut Sequences<'_, B>| {
            let fork = sequences.pool.fork(model.backend(), slot, half).expect("a copy");
            fork.expect("room for a fork")
        };
        let forks = [fork(&mut sequences), fork(&mut sequences)];
        let other: Vec<u32> = ids[half..].iter().rev().copied().collect();
        let (near, far) = ([&ids[..half], &other[..3]].concat(), [&ids[..half], &other].concat());
        let requests = [(forks[0], &near[..]), (slot, ids), (forks[1], &far)].map(|(slot, ids)| {
            let tokens = Tokens::Ids(&ids[half..]);
            Request { slot, tokens, logits: Logits::Last }
        });
        let rows = sequences.step(&requests).expect("a step").expect("logits were asked for");
        let rows = model.backend().read(&rows).expect("logits");
        let vocabulary = model.summary().vocabulary;
        let near_to_alone = |row: &[f32], ids: &[u32], what: &str| {
            let alone = fresh_logits(model, CacheFloat::F32, ids, ids.len());
            let error = relative_error(row, &alone[alone.len() - vocabulary..]);
            assert!(error < 1e-5, "{}: {what}: {error:.1e}", fixture.name);
        };
        for (row, ids) in rows.chunks_exact(vocabulary).zip([&near[..], ids, &far]) {
            near_to_alone(row, ids, "a fork");
        }
        let keep = half + 1;
        if sequences.pool.tables().reaches(forks[1], keep) {
            assert!(sequences.pool.truncate(forks[1], keep));
            let again = [&ids[..half], &other[..1], &ids[..2]].concat();
            let row = sequences.logits(forks[1], &ids[..2], 2).expect("logits");
            near_to_alone(&row[vocabulary..], &again, "cut back");
        }
    }

    /// Sequences in one batch do not meet.
    pub fn batches<B: Backend>(fixture: &Fixture, model: &Model<B>) {
        let vocabulary = model.summary().vocabulary;
        let prompts = [&fixture.ids[..], &fixture.ids[3..9], &fixture.ids[5..7], &fixture.ids[1..30]];
        let mut sequences = Sequences::new(model, CacheFloat::F32).expect("a pool");
        let slots = prompts.map(|_| sequences.create().expect("a sequence"));
        let mut step = |parts: [&[u32]; 4]| {
            let request = |(ids, slot)| Request { slot, tokens: Tokens::Ids(ids), logits: Logits::Last };
            let requests: Vec<_> = parts.into_iter().zip(slots).map(request).collect();
            let rows = sequences.step(&requests).expect("a step").expect("logits were asked for");
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
