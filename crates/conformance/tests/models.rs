//! Every fixture on every backend of this machine: mlx-lm's logits and greedy continuation, and the same logits however
//! the prompt is cut, saved or batched.

use backend::{Backend, CacheFloat};
use conformance::models::{Fixture, fixtures, fixtures_folder, greedy, logits_in_chunks, relative_error};
use cpu::{Cpu, Numerics, Options};
use models::{LayerImage, LayerShape, Logits, Model, Request, State};

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

fn fresh_logits(model: &Model<Cpu>, float: CacheFloat, ids: &[u32], chunk: usize) -> Vec<f32> {
    logits_in_chunks(model, &mut model.state(float).unwrap(), ids, chunk).unwrap()
}

#[test]
fn logits_equal_mlx_lm_in_f32() {
    each(|fixture, model| {
        let logits = fresh_logits(model, CacheFloat::F32, &fixture.ids, fixture.ids.len());
        let error = relative_error(&logits, &fixture.logits);
        println!("{:24} {error:.1e}", fixture.name);
        assert!(error < 1e-4, "{}: relative error {error:.1e}", fixture.name);
    });
}

#[test]
fn greedy_continuation_equals_mlx_lm() {
    each(|fixture, model| {
        let (ids, last) = greedy(model, &fixture.ids, fixture.greedy.len()).unwrap();
        assert_eq!(ids, fixture.greedy, "{}", fixture.name);
        let error = relative_error(&last, &fixture.last_logits);
        assert!(error < 1e-4, "{}: relative error {error:.1e} of the last step", fixture.name);
    });
}

#[test]
fn chunks_do_not_matter() {
    each(|fixture, model| {
        let whole = fresh_logits(model, CacheFloat::F32, &fixture.ids, fixture.ids.len());
        for chunk in [1, 7, 64] {
            let error = relative_error(&fresh_logits(model, CacheFloat::F32, &fixture.ids, chunk), &whole);
            assert!(error < 1e-5, "{} in chunks of {chunk}: {error:.1e}", fixture.name);
        }
    });
}

#[test]
fn saved_and_loaded_states_continue_alike() {
    each(|fixture, model| {
        for float in [CacheFloat::F32, CacheFloat::F16] {
            let (start, rest) = fixture.ids.split_at(fixture.ids.len() / 2);
            let mut state = model.state(float).unwrap();
            logits_in_chunks(model, &mut state, start, 7).unwrap();
            let image = state.image(model.backend()).unwrap();
            let mut loaded = model.state_from(&image, float).unwrap();
            assert_eq!(loaded.len(), start.len());
            let expected = logits_in_chunks(model, &mut state, rest, 64).unwrap();
            let found = logits_in_chunks(model, &mut loaded, rest, 64).unwrap();
            assert_eq!(found, expected, "{} with {float:?} caches", fixture.name);
        }
    });
}

#[test]
fn f16_caches_stay_close() {
    each(|fixture, model| {
        let error = relative_error(&fresh_logits(model, CacheFloat::F16, &fixture.ids, 16), &fixture.logits);
        assert!(error < 2e-2, "{}: relative error {error:.1e}", fixture.name);
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

#[test]
fn sequences_in_one_batch_do_not_meet() {
    each(|fixture, model| {
        let vocabulary = model.summary().vocabulary;
        let prompts = [&fixture.ids[..], &fixture.ids[3..9], &fixture.ids[5..7], &fixture.ids[1..30]];
        let mut states: Vec<_> = prompts.iter().map(|_| model.state(CacheFloat::F32).unwrap()).collect();
        let mut step = |parts: [&[u32]; 4]| {
            let request = |(tokens, state)| Request { tokens, state, logits: Logits::Last };
            let mut requests: Vec<_> = parts.into_iter().zip(&mut states).map(request).collect();
            model.backend().read(&model.step(&mut requests).unwrap().unwrap()).unwrap()
        };
        // Two steps: the second begins at a different position in each sequence.
        step(prompts.map(|ids| &ids[..ids.len() / 2]));
        let rows = step(prompts.map(|ids| &ids[ids.len() / 2..]));
        for (ids, row) in prompts.iter().zip(rows.chunks_exact(vocabulary)) {
            let alone = fresh_logits(model, CacheFloat::F32, ids, ids.len());
            let error = relative_error(row, &alone[alone.len() - vocabulary..]);
            assert!(error < 1e-5, "{}: {error:.1e}", fixture.name);
        }
    });
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
    }
    assert!(pairs >= 5, "only {pairs} pairs");
}

#[test]
fn a_window_bounds_its_cache() {
    let fixture = Fixture::open(&fixtures_folder().join("gemma4-moe-4bit"));
    let model = Model::load(&fixture.checkpoint, cpu(2)).unwrap();
    let mut state = model.state(CacheFloat::F32).unwrap();
    logits_in_chunks(&model, &mut state, &fixture.ids, 8).unwrap();
    let kept = |state: &State<Cpu>| {
        let image = state.image(model.backend()).unwrap();
        let tokens = image.layers.iter().map(|layer| match layer {
            LayerImage::Kv(kv) => kv.len - kv.first,
            LayerImage::Recurrent(_) => 0,
        });
        tokens.collect::<Vec<_>>()
    };
    let before = kept(&state);
    for id in 0..200 {
        logits_in_chunks(&model, &mut state, &[id % 100], 1).unwrap();
    }
    let windows = model.layer_shapes(CacheFloat::F32).into_iter().map(|shape| match shape {
        LayerShape::Kv(kv) => kv.window,
        LayerShape::Recurrent(_) => None,
    });
    let mut bounded = 0;
    for ((before, after), window) in before.into_iter().zip(kept(&state)).zip(windows) {
        match window {
            // A window and the longest step that passed through it.
            Some(window) => {
                bounded += 1;
                assert!(
                    after <= before && after <= window + 8,
                    "{before} tokens became {after}, window {window}"
                );
            }
            None => assert_eq!(after, before + 200),
        }
    }
    assert!(bounded > 0);
}

#[test]
fn only_what_is_not_text_stays_unused() {
    each(|fixture, _| {
        for name in fixture.checkpoint.unused() {
            let known = ["vision_tower.", "visual.", "embed_vision.", "mtp.", "layers.61.", "rotary_emb."];
            assert!(known.iter().any(|k| name.contains(k)), "{}: {name}", fixture.name);
        }
    });
}
