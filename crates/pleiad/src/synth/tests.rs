//! Sizes against the table of shapes, and folders that are written, opened and run.

use std::{
    collections::{BTreeMap, HashSet},
    fs, io,
    path::Path,
};

use backend::{Backend, CacheFloat};
use checkpoint::{Checkpoint, Dtype, QuantSpec};
use cpu::{Cpu, Options};
use models::{Logits, Model, Request};
use serde_json::Value;

use super::{
    Error, SynthArgs,
    deepseek::DeepSeek,
    gemma::Gemma,
    plan::{Plan, Planned},
    presets::{self, Family, PRESETS},
    qwen::Qwen,
    run, write,
};

fn quant(bits: u32, group: usize) -> QuantSpec {
    presets::quantization(bits, group).unwrap()
}

fn plan(name: &str, layers: Option<usize>) -> (Value, Plan) {
    let preset = presets::find(name).unwrap();
    preset.family.plan(preset.layers(layers).unwrap(), quant(4, 64), false)
}

fn experts(family: &Family) -> usize {
    match family {
        Family::Qwen(shape) => shape.experts,
        Family::DeepSeek(shape) => shape.experts,
        Family::Gemma(shape) => shape.experts,
    }
}

/// How many weights the codes of a plan stand for, and its plain values.
fn parameters(tensors: &[Planned], config: &Value) -> usize {
    let values = |tensor: &Planned| {
        let (path, part) = split(&tensor.spec.name);
        let size: usize = tensor.spec.shape.iter().product();
        match (part, tensor.spec.dtype) {
            ("scales" | "biases", _) => 0,
            (_, Dtype::U32) => {
                let bits =
                    config["quantization"][path].get("bits").unwrap_or(&config["quantization"]["bits"]);
                size * 32 / bits.as_u64().unwrap() as usize
            }
            _ => size,
        }
    };
    tensors.iter().map(values).sum()
}

/// A weight's path and which of its tensors it is.
fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap()
}

#[test]
fn sizes_are_those_of_the_table() {
    // Bytes of an expert, then parameters of the whole in billions; the vision towers and draft layers that the
    // advertised numbers may include are not made.
    for (name, bytes, billions) in [
        ("qwen3.6-35b-a3b", 1_769_472, 34.7),
        ("qwen3.5-397b-a17b", 7_077_888, 396.3),
        ("qwen3-next-80b-a3b", 1_769_472, 79.7),
        ("deepseek-v3", 24_772_608, 671.0),
        ("gemma-4-26b-a4b", 3_345_408, 25.2),
        ("deepseek-mini", 3_538_944, 12.4),
    ] {
        let (config, plan) = plan(name, None);
        let tensors = plan.into_tensors().0;
        let experts = experts(&presets::find(name).unwrap().family);
        let mut layers: BTreeMap<&str, u64> = BTreeMap::new();
        for tensor in &tensors {
            if let Some((layer, _)) = tensor.spec.name.split_once(".switch_") {
                *layers.entry(layer).or_default() += tensor.bytes();
            }
        }
        assert!(!layers.is_empty(), "{name}");
        assert!(layers.values().all(|of_layer| *of_layer == bytes * experts as u64), "{name}: {layers:?}");
        let found = parameters(&tensors, &config) as f64 / 1e9;
        assert!((found - billions).abs() < 0.1, "{name}: {found} billion parameters");
    }
}

#[test]
fn every_plan_is_consistent() {
    for preset in PRESETS {
        for layers in [1, 2, 3, 4, preset.layers.min(7), preset.layers] {
            for (bits, group) in [(4, 64), (3, 32), (8, 64), (5, 128)] {
                let (config, plan) = preset.family.plan(layers, quant(bits, group), false);
                let (total, section) = (plan.total_bytes(), plan.quantization());
                assert_eq!(config["quantization"], section);
                let tensors = plan.into_tensors().0;
                let by_name: BTreeMap<&str, &Planned> =
                    tensors.iter().map(|t| (t.spec.name.as_str(), t)).collect();
                let what = format!("{} of {layers} layers, {bits} bits, groups of {group}", preset.name);
                assert_eq!(by_name.len(), tensors.len(), "{what}: names are unique");
                assert_eq!(tensors.iter().map(Planned::bytes).sum::<u64>(), total, "{what}");
                for tensor in &tensors {
                    let (path, part) = split(&tensor.spec.name);
                    let exception = section.get(path).filter(|exception| exception.is_object());
                    if part != "weight" || tensor.spec.dtype != Dtype::U32 {
                        assert!(part != "weight" || exception.is_none(), "{what}: {path} is not quantised");
                        continue;
                    }
                    let number = |key| exception.unwrap_or(&section)[key].as_u64().unwrap() as usize;
                    for part in ["scales", "biases"] {
                        let floats = by_name[format!("{path}.{part}").as_str()];
                        let (codes, groups) = (&tensor.spec.shape, &floats.spec.shape);
                        let last = codes.len() - 1;
                        assert_eq!(codes[..last], groups[..last], "{what}: {path}");
                        assert_eq!(
                            codes[last] * 32 / number("bits"),
                            groups[last] * number("group_size"),
                            "{what}"
                        );
                    }
                }
                let text = config.get("text_config").unwrap_or(&config);
                assert_eq!(text["num_hidden_layers"], layers, "{what}");
                let indices: HashSet<&str> = by_name
                    .keys()
                    .filter_map(|name| name.split("layers.").nth(1)?.split('.').next())
                    .collect();
                assert_eq!(indices.len(), layers, "{what}");
                if let Some(kinds) = text.get("layer_types").and_then(Value::as_array) {
                    assert_eq!(kinds.len(), layers, "{what}");
                    assert!(kinds.contains(&"full_attention".into()), "{what}");
                }
                assert!(
                    by_name.keys().any(|name| name.contains(".switch_")),
                    "{what}: some layer has experts"
                );
            }
        }
    }
}

/// The same family and proportions, small.
fn shrunk(family: &Family) -> Family {
    match family.clone() {
        Family::Qwen(shape) => Family::Qwen(Qwen {
            hidden: 128,
            heads: 4,
            head_dim: 32,
            key_heads: 2,
            value_heads: 2 * shape.value_heads / shape.key_heads,
            linear_dim: 32,
            experts: 16,
            width: 64,
            vocabulary: 256,
            ..shape
        }),
        Family::DeepSeek(shape) => Family::DeepSeek(DeepSeek {
            hidden: 128,
            dense_width: 192,
            heads: 2,
            experts: 16,
            width: 64,
            vocabulary: 256,
            ..shape
        }),
        Family::Gemma(shape) => Family::Gemma(Gemma {
            hidden: 128,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            global_kv_heads: 1,
            global_head_dim: 64,
            window: 8,
            experts: 16,
            width: 64,
            dense_width: 192,
            vocabulary: 256,
            ..shape
        }),
    }
}

/// Loads a folder and runs a few tokens: nothing missing, nothing left over, logits that say different things.
fn check_runs(folder: &Path, what: &str) {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let backend = Cpu::new(Options { threads: Some(1), ..Options::default() }).unwrap();
    let model = Model::load_drafting(&checkpoint, backend).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(checkpoint.unused(), Vec::<String>::new(), "{what}");
    let mut state = model.state(CacheFloat::F32).unwrap();
    let tokens = [3, 200, 41, 3, 17, 99];
    let request = Request { tokens: &tokens, state: &mut state, logits: Logits::All };
    let logits = model.step(&mut [request]).unwrap().unwrap();
    let logits = model.backend().read(&logits).unwrap();
    let rows: Vec<&[f32]> = logits.chunks(model.summary().vocabulary).collect();
    assert_eq!(rows.len(), tokens.len(), "{what}");
    for (i, row) in rows.iter().enumerate() {
        let mean = row.iter().sum::<f32>() / row.len() as f32;
        let deviation = (row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / row.len() as f32).sqrt();
        assert!((0.3..10.0).contains(&deviation), "{what}: row {i} deviates by {deviation}");
        let apart = |other: &&[f32]| row.iter().zip(*other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(rows[..i].iter().all(|other| apart(other) > 0.1), "{what}: row {i} repeats an earlier one");
    }
}

#[test]
fn every_family_that_can_be_loaded_runs() {
    let folder = tempfile::tempdir().unwrap();
    for preset in PRESETS {
        let family = shrunk(&preset.family);
        for (layers, bits, group) in [(1, 4, 64), (2, 4, 32), (4, 3, 32), (7, 4, 64), (4, 8, 128)] {
            // With a drafting head now and then.
            let (config, plan) = family.plan(layers, quant(bits, group), layers % 4 == 0);
            if !models::FAMILIES.contains(&config["model_type"].as_str().unwrap()) {
                continue;
            }
            let what = format!("{}-{layers}-{bits}-{group}", preset.name);
            let dst = folder.path().join(&what);
            write::write(&dst, &config, plan, &[], 1, |_| {}).unwrap();
            check_runs(&dst, &what);
        }
    }
}

fn args(preset: &str, dst: &Path) -> SynthArgs {
    SynthArgs {
        preset: preset.into(),
        dst: dst.into(),
        layers: None,
        seed: 0,
        bits: 4,
        group: 64,
        drafter: false,
    }
}

#[test]
fn tiny_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    run(&args("tiny", &path("a"))).unwrap();
    check_runs(&path("a"), "tiny");
    let tokenizer: Value = serde_json::from_slice(&fs::read(path("a/tokenizer.json")).unwrap()).unwrap();
    let ids = tokenizer["model"]["vocab"].as_object().unwrap().values().map(|id| id.as_u64().unwrap());
    assert!(ids.max().unwrap() < 512, "the vocabulary covers the tokenizer");
    assert!(path("a/tokenizer_config.json").is_file() && path("a/generation_config.json").is_file());

    run(&args("tiny", &path("b"))).unwrap();
    run(&SynthArgs { seed: 1, ..args("tiny", &path("c")) }).unwrap();
    let weights = |name: &str| fs::read(path(name).join("model.safetensors")).unwrap();
    assert!(weights("a") == weights("b"), "a seed makes the same weights again");
    assert!(weights("a") != weights("c"), "another seed makes others");
    assert!(weights("a").len() < 4_000_000);
}

#[test]
fn fewer_layers_are_the_same_layers() {
    let contents = |layers| {
        let tensors = plan("qwen3.6-35b-a3b", Some(layers)).1.into_tensors().0.into_iter();
        tensors
            .map(|tensor| (tensor.spec.name, tensor.spec.shape, tensor.stream, tensor.fill))
            .collect::<Vec<_>>()
    };
    let (few, many) = (contents(4), contents(8));
    assert!(few.iter().all(|tensor| many.contains(tensor)));
}

#[test]
fn errors_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let dst = folder.path().join("model");
    let message = |args: SynthArgs| run(&args).unwrap_err().to_string();
    let base = args("tiny", &dst);

    let unknown = message(args("tinny", &dst));
    assert!(
        unknown.contains("tinny") && presets::names().iter().all(|name| unknown.contains(name)),
        "{unknown}"
    );
    for layers in [0, 5] {
        let error = message(SynthArgs { layers: Some(layers), ..base.clone() });
        assert!(error.contains("1 to 4 layers"), "{error}");
    }
    for (bits, group) in [(7, 64), (0, 64), (4, 16), (4, 0), (1, 32)] {
        let error = message(SynthArgs { bits, group, ..base.clone() });
        assert!(error.contains("1, 2, 3, 4, 5, 6 or 8 bits"), "{error}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");

    fs::create_dir(&dst).unwrap();
    let error = message(base);
    assert!(error.contains("already exists"), "{error}");

    let full = checkpoint::Error::Io { path: dst, source: io::ErrorKind::StorageFull.into() };
    let error = Error::writing(full, 20_500_000_000).to_string();
    assert!(error.contains("no space left") && error.contains("20.5 GB"), "{error}");
}
