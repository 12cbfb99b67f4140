//! Sizes against the table of shapes, and folders that are written, opened and run.

use std::{
    collections::{BTreeMap, HashSet},
    fs, io,
    path::Path,
};

use backend::{CacheFloat, Ops, Tokens};
use checkpoint::{Checkpoint, Dtype, QuantSpec};
use cpu::{Cpu, Options};
use models::{Logits, Model, Preset, Request};
use serde_json::{Value, json};

use super::{
    Error, SynthArgs,
    plan::{Plan, Planned},
    presets, run, write,
};

fn quant(bits: u32, group: usize) -> QuantSpec {
    presets::quantization(bits, group).unwrap()
}

/// The config of so many layers of a preset.
fn config(preset: &Preset, layers: Option<usize>) -> Value {
    let mut config = presets::config(preset);
    presets::shorten(preset.name, &mut config, layers).unwrap();
    config
}

fn plan(name: &str, layers: Option<usize>) -> (Value, Plan) {
    let mut config = config(presets::find(name).unwrap(), layers);
    let plan = Plan::new(&mut config, quant(4, 64), false).unwrap();
    (config, plan)
}

fn experts(config: &mut Value) -> u64 {
    let text = presets::text(config);
    ["num_experts", "n_routed_experts"].iter().find_map(|field| text.get(field)?.as_u64()).unwrap()
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
        let (mut config, plan) = plan(name, None);
        let tensors = plan.into_tensors().0;
        let experts = experts(&mut config);
        let mut layers: BTreeMap<&str, u64> = BTreeMap::new();
        for tensor in &tensors {
            if let Some((layer, _)) = tensor.spec.name.split_once(".switch_") {
                *layers.entry(layer).or_default() += tensor.bytes();
            }
        }
        assert!(!layers.is_empty(), "{name}");
        assert!(layers.values().all(|of_layer| *of_layer == bytes * experts), "{name}: {layers:?}");
        let found = parameters(&tensors, &config) as f64 / 1e9;
        assert!((found - billions).abs() < 0.1, "{name}: {found} billion parameters");
    }
}

#[test]
fn every_plan_is_consistent() {
    for preset in presets::all() {
        let all = presets::layers(&mut presets::config(preset));
        for layers in [1, 2, 3, 4, all.min(7), all] {
            for (bits, group) in [(4, 64), (3, 32), (8, 64), (5, 128)] {
                let mut config = config(preset, Some(layers));
                let plan = Plan::new(&mut config, quant(bits, group), false).unwrap();
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
fn shrink(config: &mut Value) {
    let text = presets::text(config);
    let ratio = |text: &Value| {
        text["linear_num_value_heads"].as_u64().unwrap_or(2)
            / text["linear_num_key_heads"].as_u64().unwrap_or(1)
    };
    let value_heads = 2 * ratio(text);
    let gemma = text["model_type"] == "gemma4_text";
    for (field, value) in [
        ("hidden_size", 128),
        ("num_attention_heads", if text.get("kv_lora_rank").is_some() { 2 } else { 4 }),
        ("num_key_value_heads", 2),
        ("num_global_key_value_heads", 1),
        ("head_dim", 32),
        ("global_head_dim", 64),
        ("sliding_window", 8),
        ("linear_num_key_heads", 2),
        ("linear_num_value_heads", value_heads),
        ("linear_key_head_dim", 32),
        ("linear_value_head_dim", 32),
        ("num_experts", 16),
        ("n_routed_experts", 16),
        ("moe_intermediate_size", 64),
        ("shared_expert_intermediate_size", 64),
        ("intermediate_size", 192),
        ("vocab_size", 256),
    ] {
        if let Some(found) = text.get_mut(field) {
            *found = json!(value);
        }
    }
    if gemma {
        config["vocab_size"] = json!(256);
    }
}

/// Loads a folder and runs a few tokens: nothing missing, nothing left over, logits that say different things.
fn check_runs(folder: &Path, what: &str) {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let backend = Cpu::new(Options { threads: Some(1), ..Options::default() }).unwrap();
    let model = Model::load_drafting(&checkpoint, backend).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(checkpoint.unused(), Vec::<String>::new(), "{what}");
    let mut pool = model.pool(CacheFloat::F32, 1 << 30).unwrap();
    let slot = pool.create(model.backend()).unwrap().unwrap();
    let tokens = [3, 200, 41, 3, 17, 99];
    assert!(pool.reserve(model.backend(), slot, tokens.len()).unwrap());
    let request = Request { slot, tokens: Tokens::Ids(&tokens), logits: Logits::All };
    let logits = model.step(&mut pool, &[request]).unwrap().unwrap();
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
    for preset in presets::all() {
        let all = presets::layers(&mut presets::config(preset));
        for (layers, bits, group) in [(1, 4, 64), (2, 4, 32), (4, 3, 32), (all.min(7), 4, 64), (4, 8, 128)] {
            let mut config = config(preset, Some(layers));
            shrink(&mut config);
            // With a drafting head now and then.
            let plan = Plan::new(&mut config, quant(bits, group), layers % 4 == 0).unwrap();
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
    for (bits, group) in [(7, 64), (0, 64), (4, 16), (4, 0)] {
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
