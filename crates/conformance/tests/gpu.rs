//! The GPU backend on whatever adapter this machine has, software included: every operation, and every fixture against
//! mlx-lm's logits. A machine without any adapter skips these tests, and says so.

use std::sync::OnceLock;

use backend::{Backend, CacheFloat, GroupedSigmoid};
use conformance::models::{Fixture, fixtures, greedy, logits_in_chunks, relative_error};
use conformance::{report, run_all, run_all_fast};
use gpu::{Choice, Gpu, Numerics, Options};
use models::{Logits, Model, Request};

/// The adapter, opened once: kernels are compiled only once too.
fn gpu() -> Option<Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    GPU.get_or_init(|| open(&exact())).clone()
}

fn exact() -> Options {
    Options { adapter: Choice::Any, numerics: Numerics::Exact, ..Options::default() }
}

fn open(options: &Options) -> Option<Gpu> {
    match Gpu::new(options) {
        Ok(gpu) => {
            println!("{}", gpu.description());
            Some(gpu)
        }
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn each(check: impl Fn(&Fixture, &Model<Gpu>)) {
    let Some(gpu) = gpu() else { return };
    for fixture in &fixtures() {
        let model =
            Model::load(&fixture.checkpoint, gpu.clone()).unwrap_or_else(|e| panic!("{}: {e}", fixture.name));
        check(fixture, &model);
    }
}

fn fresh_logits(model: &Model<Gpu>, float: CacheFloat, ids: &[u32], chunk: usize) -> Vec<f32> {
    logits_in_chunks(model, &mut model.state(float).unwrap(), ids, chunk).unwrap()
}

#[test]
fn operations() {
    if let Some(gpu) = gpu() {
        report(&run_all(&gpu, None));
    }
}

#[test]
fn operations_without_subgroups_and_with_weights_in_parts() {
    let options = Options { largest_part: Some(8 << 10), no_subgroups: true, ..exact() };
    if let Some(gpu) = open(&options) {
        report(&run_all(&gpu, None));
    }
}

/// With the matrix units of GPUs that have them; the others round nothing. Random weights magnify rounding, and an expert chosen by a
/// hair can change: on real text the divergence from the CPU's exact numerics is 1e-4 (docs/performance.md).
#[test]
fn fast_numerics() {
    let Some(gpu) = open(&Options { numerics: Numerics::Fast, ..exact() }) else { return };
    if gpu.numerics() == Numerics::Exact {
        println!("skipped: this GPU has no matrix units that wgpu reaches, so fast is exact");
        return;
    }
    report(&run_all_fast(&gpu));
    for fixture in &fixtures() {
        let model = Model::load(&fixture.checkpoint, gpu.clone()).unwrap();
        let logits = fresh_logits(&model, CacheFloat::F16, &fixture.ids, 64);
        let error = relative_error(&logits, &fixture.logits);
        println!("{:24} {error:.1e}", fixture.name);
        assert!(error < 5e-2, "{}: relative error {error:.1e}", fixture.name);
    }
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
        for chunk in [7, 64] {
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
            let expected = logits_in_chunks(model, &mut state, rest, 64).unwrap();
            let found = logits_in_chunks(model, &mut loaded, rest, 64).unwrap();
            assert_eq!(found, expected, "{} with {float:?} caches", fixture.name);
        }
    });
}

#[test]
fn sequences_in_one_batch_do_not_meet() {
    each(|fixture, model| {
        let vocabulary = model.summary().vocabulary;
        let prompts = [&fixture.ids[..], &fixture.ids[3..9], &fixture.ids[5..7], &fixture.ids[1..30]];
        let mut states: Vec<_> = prompts.iter().map(|_| model.state(CacheFloat::F16).unwrap()).collect();
        let mut step = |parts: [&[u32]; 4]| {
            let request = |(tokens, state)| Request { tokens, state, logits: Logits::Last };
            let mut requests: Vec<_> = parts.into_iter().zip(&mut states).map(request).collect();
            model.backend().read(&model.step(&mut requests).unwrap().unwrap()).unwrap()
        };
        step(prompts.map(|ids| &ids[..ids.len() / 2]));
        let rows = step(prompts.map(|ids| &ids[ids.len() / 2..]));
        for (ids, row) in prompts.iter().zip(rows.chunks_exact(vocabulary)) {
            let alone = fresh_logits(model, CacheFloat::F16, ids, ids.len());
            let error = relative_error(row, &alone[alone.len() - vocabulary..]);
            assert!(error < 1e-3, "{}: {error:.1e}", fixture.name);
        }
    });
}

/// Runs that a real GPU repeats; software does a few.
fn repeats(gpu: &Gpu) -> usize {
    if gpu.adapter().software { 10 } else { 1000 }
}

#[test]
fn routing_repeats_bit_by_bit() {
    let Some(gpu) = gpu() else { return };
    let (tokens, experts, top_k) = (512, 256, 8);
    let mut rng = conformance::random::Rng::named("routing repeats");
    let values: Vec<f32> = (0..tokens * experts).map(|_| rng.normal()).collect();
    let logits = gpu.upload(tokens, experts, &values).unwrap();
    let bias = gpu.upload(1, experts, &values[..experts]).unwrap();
    let spec = GroupedSigmoid { top_k, groups: 8, kept_groups: 4, renormalise: true, scaling: 2.5 };
    let route = || {
        let softmax = gpu.read_routes(&gpu.route_softmax(&logits, top_k, true).unwrap()).unwrap();
        let grouped = gpu.read_routes(&gpu.route_sigmoid_grouped(&logits, &bias, &spec).unwrap()).unwrap();
        [softmax, grouped]
    };
    let first = route();
    for i in 1..repeats(&gpu) {
        assert!(route() == first, "run {i} differs");
    }
}

/// A step of every family, from the same state. `PLEIAD_REPEAT` may name a folder of a larger model to take instead.
#[test]
fn decode_steps_repeat_bit_by_bit() {
    let Some(gpu) = gpu() else { return };
    let names = ["qwen3_5_moe-4bit", "deepseek_v3-4bit", "gemma4-moe-4bit"];
    let folders = match std::env::var_os("PLEIAD_REPEAT") {
        Some(folder) => vec![folder.into()],
        None => names.iter().map(|name| conformance::models::fixtures_folder().join(name)).collect(),
    };
    for folder in folders {
        let checkpoint = checkpoint::Checkpoint::open(&folder).unwrap();
        let model = Model::load(&checkpoint, gpu.clone()).unwrap();
        let mut state = model.state(CacheFloat::F16).unwrap();
        let prompt: Vec<u32> = (0..40).collect();
        logits_in_chunks(&model, &mut state, &prompt, 64).unwrap();
        let start = state.snapshot(&gpu).unwrap();
        let mut step = || {
            assert!(state.restore(&gpu, &start).unwrap());
            logits_in_chunks(&model, &mut state, &[7], 1).unwrap()
        };
        let first = step();
        for i in 1..repeats(&gpu) {
            let same = step().iter().map(|v| v.to_bits()).eq(first.iter().map(|v| v.to_bits()));
            assert!(same, "{}: run {i} differs", folder.display());
        }
    }
}
