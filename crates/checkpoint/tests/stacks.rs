//! Stacks whose matrices are tensors of their own, as Hugging Face keeps experts.

mod common;

use checkpoint::{
    Checkpoint, Dtype, Error, Format, Result, Weight, quantize_mxfp4, quantize_mxfp8, quantize_nvfp4,
};
use common::*;
use serde_json::{Value, json};

type Tensors = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;

fn load<T>(config: &Value, tensors: &Tensors, get: impl FnOnce(&Checkpoint) -> Result<T>) -> Result<T> {
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.as_str(), *dtype, shape.as_slice(), bytes.clone()))
        .collect();
    let dir = model(config, &tensors);
    get(&Checkpoint::open(dir.path()).unwrap())
}

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 1009) as f32 / 100.0 - 5.0).collect()
}

fn experts(format: &str, count: usize) -> Tensors {
    let mut tensors = Tensors::new();
    for e in 0..count {
        let mut one: Tensors = match format {
            "plain" => vec![(
                "w.weight".into(),
                Dtype::F32,
                vec![4, 32],
                floats(values(128 * count)[128 * e..][..128].to_vec()),
            )],
            "fp8" => vec![
                (
                    "w.weight".into(),
                    Dtype::F8_E4M3,
                    vec![4, 32],
                    (0..128).map(|i| ((i * 7 + e) % 126) as u8).collect(),
                ),
                (
                    "w.weight_scale_inv".into(),
                    Dtype::F32,
                    vec![2, 2],
                    floats((0..4).map(|i| (i + e) as f32 + 0.5)),
                ),
            ],
            _ => {
                let all = values(128 * count);
                let values = &all[128 * e..][..128];
                let (rows, words, groups) = match format {
                    "mxfp4" => (quantize_mxfp4(values, 32), 4, 1),
                    "mxfp8" => (quantize_mxfp8(values, 32), 8, 1),
                    _ => (quantize_nvfp4(values, 32), 4, 2),
                };
                vec![
                    ("w.weight".into(), Dtype::U32, vec![4, words], rows.codes),
                    ("w.scales".into(), Dtype::U8, vec![4, groups], rows.scales),
                ]
            }
        };
        for tensor in &mut one {
            tensor.0 = format!("experts.{e}.{}", tensor.0);
        }
        tensors.extend(one);
    }
    // Aligned types first, so that the file can be written in any order.
    tensors.sort_by_key(|t| std::cmp::Reverse(t.1.bitsize()));
    tensors
}

fn paths(count: usize) -> Vec<String> {
    (0..count).map(|e| format!("experts.{e}.w")).collect()
}

fn expert_config() -> Value {
    json!({"quantization": {"bits": 4, "group_size": 64}})
}

#[test]
fn separate_experts_are_a_stack_of_the_same_rows() {
    for format in ["plain", "mxfp4", "mxfp8", "nvfp4", "fp8"] {
        let config = if format == "fp8" {
            json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [3, 20]}})
        } else {
            expert_config()
        };
        load(&config, &experts(format, 3), |c| {
            let stack = c.stack_of(&paths(3), 4, 32)?;
            assert!(c.unused().is_empty());
            let singles: Vec<Weight> =
                paths(3).iter().map(|path| c.matrix(path, 4, 32)).collect::<Result<_>>()?;
            assert_eq!((stack.count, stack.rows, stack.cols, stack.format), (3, 4, 32, singles[0].format));
            assert_eq!(decoded(&stack), singles.iter().flat_map(decoded).collect::<Vec<_>>());
            assert_eq!(stack.stored_bytes(), singles.iter().map(Weight::stored_bytes).sum::<u64>());
            assert_eq!(stack.data.matrix(2), singles[2].data.matrix(0));
            assert_eq!(stack.data.rows(1, 1..3), singles[1].data.rows(0, 1..3));
            // No copy: the rows are where they are in the mapped file.
            assert_eq!(stack.data.row(2, 1).as_ptr(), singles[2].data.row(0, 1).as_ptr());
            for range in [0..2, 1..4, 3..4, 2..2] {
                let parts: Vec<f32> =
                    singles.iter().flat_map(|single| decoded(&single.row_range(range.clone()))).collect();
                assert_eq!(decoded(&stack.row_range(range)), parts);
            }
            // One matrix of its own can be cut into heads too.
            let one = c.stack_of(&paths(1), 4, 32)?;
            assert_eq!(one.name, "experts.0.w");
            assert_eq!(decoded(&one.head_rows(2, 0..2)), decoded(&singles[0]));
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn separate_experts_must_all_be_there_and_alike() {
    let get = |tensors: &Tensors| load(&expert_config(), tensors, |c| c.stack_of(&paths(3), 4, 32));
    let mut tensors = experts("mxfp4", 3);
    tensors.retain(|t| t.0 != "experts.1.w.weight");
    assert_names(&get(&tensors).unwrap_err(), &["experts.1.w.weight", "missing"]);

    let mut tensors = experts("mxfp4", 3);
    tensors.retain(|t| !t.0.starts_with("experts.2."));
    assert_names(&get(&tensors).unwrap_err(), &["experts.2.w.weight", "missing"]);
    tensors.extend(experts("mxfp8", 3).into_iter().filter(|t| t.0.starts_with("experts.2.")));
    tensors.sort_by_key(|t| std::cmp::Reverse(t.1.bitsize()));
    let error = get(&tensors).unwrap_err();
    assert!(matches!(error, Error::MixedFormats { found: Format::Mxfp8, .. }), "{error}");
    assert_names(&error, &["experts.2.w", "experts.0.w", "Mxfp8", "Mxfp4"]);

    let mut tensors = experts("plain", 3);
    for e in [0, 2] {
        tensors.push((format!("experts.{e}.w.bias"), Dtype::F32, vec![4], ramp(4)));
    }
    assert_names(&get(&tensors).unwrap_err(), &["experts.1.w.bias", "missing"]);
    tensors.push(("experts.1.w.bias".into(), Dtype::F32, vec![4], floats([9.0; 4])));
    let stack = get(&tensors).unwrap();
    let bias = [0.0, 0.125, 0.25, 0.375, 9.0, 9.0, 9.0, 9.0, 0.0, 0.125, 0.25, 0.375];
    assert_eq!(stack.bias.as_deref(), Some(&bias[..]));
    assert_eq!(stack.row_range(1..2).bias.as_deref(), Some(&[0.125, 9.0, 0.125][..]));

    let empty = load(&json!({}), &experts("plain", 1), |c| c.stack_of(&[], 4, 32)).unwrap();
    assert_eq!((empty.count, empty.stored_bytes()), (0, 0));
}

#[test]
fn experts_may_have_global_scales_of_their_own() {
    let mut tensors = experts("nvfp4", 3);
    tensors.insert(0, ("experts.1.w.global_scale".into(), Dtype::F32, vec![], floats([1344.0])));
    let stack = load(&expert_config(), &tensors, |c| c.stack_of(&paths(3), 4, 32)).unwrap();
    assert_eq!([0, 1, 2].map(|m| stack.global_factor(m)), [1.0, 0.5, 1.0]);
}

#[test]
fn released_rows_can_be_read_again() {
    load(&expert_config(), &experts("mxfp8", 3), |c| {
        let stack = c.stack_of(&paths(3), 4, 32)?;
        let before = decoded(&stack);
        (0..3).for_each(|matrix| stack.release(matrix, 1..3));
        stack.release(0, 2..2);
        assert_eq!(decoded(&stack), before);
        Ok(())
    })
    .unwrap();
}
