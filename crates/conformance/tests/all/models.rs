//! Every fixture on every backend of this machine: mlx-lm's logits and greedy continuation, and the same logits however
//! the prompt is cut, saved or batched.

use backend::CacheFloat;
use conformance::models::{
    Fixture, Sequences, checks, drafted_logits, fixtures, fixtures_folder, fresh_logits, relative_error,
};
use cpu::{Cpu, Numerics, Options};
use models::{LayerImage, LayerShape, Model};
use store::{Store, StoreOptions};

fn cpu(threads: usize) -> Cpu {
    Cpu::new(Options { threads: Some(threads), numerics: Numerics::Exact, ..Options::default() }).unwrap()
}

fn fast(threads: usize) -> Cpu {
    Cpu::new(Options { threads: Some(threads), numerics: Numerics::Fast, ..Options::default() }).unwrap()
}

fn each(check: impl Fn(&Fixture, &Model<Cpu>)) {
    let fixtures = fixtures();
    assert!(fixtures.len() >= 10, "only {} fixtures", fixtures.len());
    for fixture in &fixtures {
        let model =
            Model::load(&fixture.checkpoint, cpu(2)).unwrap_or_else(|e| panic!("{}: {e}", fixture.name));
        check(fixture, &model);
    }
}

#[test]
fn logits_equal_mlx_lm_in_f32() {
    each(checks::logits);
}

#[test]
fn drafting_heads_guess_what_mlx_lms_modules_do() {
    let mut heads = 0;
    for fixture in fixtures().iter().filter(|fixture| fixture.drafts.is_some()) {
        heads += 1;
        let plain = Model::load(&fixture.checkpoint, cpu(2)).unwrap();
        let model = Model::load_drafting(&fixture.checkpoint, cpu(2)).unwrap();
        checks::drafts(fixture, &model);
        // The head is something beside the model: what a token reads, and its logits, stay.
        checks::logits(fixture, &model);
        assert_eq!(plain.traffic(), model.traffic());
        assert_eq!(plain.draft_shape(CacheFloat::F16), None);
        assert!(plain.sizes().experts < model.sizes().experts && plain.sizes().others < model.sizes().others);
    }
    assert!(heads >= 3, "only {heads} heads");
}

#[test]
fn greedy_continuation_equals_mlx_lm() {
    each(checks::continuation);
}

#[test]
fn chunks_do_not_matter() {
    each(checks::chunks);
}

#[test]
fn saved_and_loaded_states_continue_alike() {
    each(checks::saved_states);
}

#[test]
fn forks_go_on_as_if_alone() {
    each(checks::forks);
}

#[test]
fn f16_caches_stay_close() {
    each(|fixture, model| {
        let error = relative_error(&fresh_logits(model, CacheFloat::F16, &fixture.ids, 16), &fixture.logits);
        assert!(error < 2e-2, "{}: relative error {error:.1e}", fixture.name);
    });
}

/// With either numerics. Random weights magnify rounding, and an expert chosen by a hair changes; what it does to a real model is in
/// docs/performance.md.
#[test]
fn caches_of_codes_stay_close() {
    each(|fixture, exact| {
        let fast = Model::load(&fixture.checkpoint, fast(2)).unwrap();
        for (model, numerics) in [(exact, "exact"), (&fast, "fast")] {
            for chunk in [1, 16] {
                let logits = fresh_logits(model, CacheFloat::Q8, &fixture.ids, chunk);
                let error = relative_error(&logits, &fixture.logits);
                println!("{:24} {numerics}, chunks of {chunk}: {error:.1e}", fixture.name);
                assert!(error < 0.5, "{} in chunks of {chunk}: relative error {error:.1e}", fixture.name);
            }
        }
    });
}

/// Random weights magnify rounding, and an expert chosen by a hair can change; real models are nearer (docs/box.md).
#[test]
fn fast_numerics_stay_close() {
    each(|fixture, _| {
        let [one, two] = [1, 2].map(|threads| Model::load(&fixture.checkpoint, fast(threads)).unwrap());
        for chunk in [1, 64] {
            let [a, b] = [&one, &two].map(|model| fresh_logits(model, CacheFloat::F16, &fixture.ids, chunk));
            assert_eq!(a, b, "{}: one thread and two differ", fixture.name);
            let error = relative_error(&a, &fixture.logits);
            println!("{:24} chunks of {chunk}: {error:.1e}", fixture.name);
            assert!(error < 2e-2, "{} in chunks of {chunk}: relative error {error:.1e}", fixture.name);
        }
    });
}

/// A model larger than memory gives the same bits as one in memory, however few of its experts fit.
#[test]
fn experts_from_disk_do_not_matter() {
    each(|fixture, _| {
        for numerics in [Numerics::Exact, Numerics::Fast] {
            let with = |memory: Option<u64>| {
                let streaming = memory.map(StoreOptions::new);
                let options = Options { threads: Some(2), numerics, streaming, ..Options::default() };
                Model::load(&fixture.checkpoint, Cpu::new(options).unwrap()).unwrap()
            };
            let model = with(None);
            let expert = model.sizes().expert;
            for (chunk, memory) in [(1, 0), (1, 6 * expert), (64, 3 * expert), (5, u64::MAX >> 24)] {
                let (expected, memory) =
                    (fresh_logits(&model, CacheFloat::F16, &fixture.ids, chunk), with(Some(memory)));
                let found = fresh_logits(&memory, CacheFloat::F16, &fixture.ids, chunk);
                assert!(expected == found, "{} in chunks of {chunk}", fixture.name);
                let stats = memory.backend().store().map(Store::take_stats);
                assert_eq!(stats.is_some_and(|stats| stats.misses > 0), expert > 0, "{}", fixture.name);
            }
        }
    });
}

#[test]
fn sequences_in_one_batch_do_not_meet() {
    each(checks::batches);
}

#[test]
fn threads_do_not_matter() {
    each(|fixture, model| {
        let one = Model::load(&fixture.checkpoint, cpu(1)).unwrap();
        let run = |model| fresh_logits(model, CacheFloat::F16, &fixture.ids, 64);
        assert_eq!(run(&one), run(model), "{}", fixture.name);
    });
}

/// The fixtures that hold one model twice: under mlx-lm's names, and under Hugging Face's with `-hf` appended.
#[test]
fn names_and_layouts_do_not_matter() {
    let fixtures = fixtures();
    let mut pairs = 0;
    for original in fixtures.iter().filter(|f| f.name.ends_with("-hf")) {
        let Some(converted) = fixtures.iter().find(|f| original.name == format!("{}-hf", f.name)) else {
            continue;
        };
        pairs += 1;
        assert_eq!(original.ids, converted.ids);
        let logits = |fixture: &Fixture| {
            let model = Model::load(&fixture.checkpoint, cpu(2)).unwrap();
            fresh_logits(&model, CacheFloat::F32, &fixture.ids, 64)
        };
        assert!(logits(original) == logits(converted), "{} and {} differ", original.name, converted.name);
        if original.drafts.is_some() {
            let [a, b] = [original, converted].map(|fixture| {
                let model = Model::load_drafting(&fixture.checkpoint, cpu(2)).unwrap();
                drafted_logits(&model, &fixture.ids, 64).unwrap()
            });
            assert!(a == b, "the heads of {} and {} differ", original.name, converted.name);
        }
    }
    assert!(pairs >= 5, "only {pairs} pairs");
}

/// Blocks that a window has passed are given back, and no others.
#[test]
fn a_window_bounds_its_blocks() {
    let fixture = Fixture::open(&fixtures_folder().join("gemma4-moe-4bit"));
    let model = Model::load(&fixture.checkpoint, cpu(2)).unwrap();
    let mut sequences = Sequences::new(&model, CacheFloat::F32).unwrap();
    let slot = sequences.create().unwrap();
    sequences.logits(slot, &fixture.ids, 8).unwrap();
    let ids: Vec<u32> = (0..400).map(|id| id % 100).collect();
    sequences.logits(slot, &ids, 1).unwrap();
    let len = sequences.pool.len(slot);
    let image = sequences.pool.save(model.backend(), slot).unwrap();
    let mut bounded = 0;
    for (shape, image) in model.layer_shapes(CacheFloat::F32).iter().zip(&image.layers) {
        let (LayerShape::Kv(shape), LayerImage::Kv(image)) = (shape, image) else { continue };
        let seen = shape.window.map_or(0, |window| len + 1 - window);
        assert_eq!((image.first, image.len), (seen / 64 * 64, len), "{shape:?}");
        bounded += usize::from(image.first > 0);
    }
    assert!(bounded > 0);
    let tables = sequences.pool.tables();
    let held = (0..).map_while(|group| tables.table(slot, group)).map(|table| table.held.len());
    assert!(held.clone().any(|blocks| blocks == len.div_ceil(64)), "{:?}", held.collect::<Vec<_>>());
}

#[test]
fn only_what_is_not_text_stays_unused() {
    for fixture in &fixtures() {
        Model::load_drafting(&fixture.checkpoint, cpu(1)).unwrap();
        for name in fixture.checkpoint.unused() {
            // Some have a few tensors of a head, which are none.
            let known = ["vision_tower.", "visual.", "embed_vision.", "mtp.", "layers.61.", "rotary_emb."];
            let known = known.iter().any(|k| name.contains(k)) && fixture.drafts.is_none();
            assert!(known, "{}: {name}", fixture.name);
        }
    }
}
