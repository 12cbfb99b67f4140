//! Opening folders: which files are taken, and every way in which they can be damaged.

mod common;

use std::fs;

use checkpoint::{Checkpoint, Dtype, Error};
use common::*;
use serde_json::json;

#[test]
fn a_single_file_opens() {
    let config = json!({"model_type": "test", "text_config": {"hidden_size": 4}});
    let dir = model(&config, &[("b", Dtype::F32, &[2, 3], ramp(6)), ("a", Dtype::U8, &[5], vec![9; 5])]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.folder(), dir.path());
    assert_eq!(checkpoint.config().model_type().unwrap(), "test");
    assert_eq!(checkpoint.config().text()["hidden_size"], 4);
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(checkpoint.total_bytes(), 29);
    assert!(checkpoint.contains("a") && !checkpoint.contains("c"));

    assert_eq!(checkpoint.unused(), ["a", "b"]);
    let b = checkpoint.tensor("b").unwrap();
    assert_eq!(
        (b.name.as_str(), b.dtype, &b.shape[..], &*b.bytes),
        ("b", Dtype::F32, &[2, 3][..], &ramp(6)[..])
    );
    assert_eq!(checkpoint.unused(), ["a"]);

    // The mapping outlives the checkpoint.
    drop(checkpoint);
    assert_eq!(&*b.bytes, &ramp(6)[..]);
}

#[test]
fn an_index_decides_over_several_files() {
    let dir = folder(&json!({}));
    put_tensors(dir.path(), "x-1.safetensors", &[("a", Dtype::U8, &[1], vec![1])]);
    put_tensors(dir.path(), "x-2.safetensors", &[("b", Dtype::U8, &[1], vec![2])]);
    put_tensors(dir.path(), "model-unlisted.safetensors", &[("a", Dtype::U8, &[1], vec![3])]);
    let index = json!({"metadata": {}, "weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}});
    put(dir.path(), "model.safetensors.index.json", index.to_string());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(&*checkpoint.tensor("a").unwrap().bytes, &[1]);
    assert_eq!(&*checkpoint.tensor("b").unwrap().bytes, &[2]);

    // A leftover index beside a single file that it does not name.
    put_tensors(dir.path(), "model.safetensors", &[("c", Dtype::U8, &[1], vec![4])]);
    assert_eq!(Checkpoint::open(dir.path()).unwrap().names().collect::<Vec<_>>(), ["c"]);

    // mlx-lm's index of a single file, and one that names more besides it.
    let index = json!({"weight_map": {"c": "model.safetensors", "b": "x-2.safetensors"}});
    put(dir.path(), "model.safetensors.index.json", index.to_string());
    assert_eq!(Checkpoint::open(dir.path()).unwrap().names().collect::<Vec<_>>(), ["b", "c"]);
}

#[test]
fn without_an_index_all_files_count_those_named_model_first() {
    let dir = folder(&json!({}));
    put_tensors(dir.path(), "adapters.safetensors", &[("a", Dtype::U8, &[1], vec![1])]);
    assert_eq!(Checkpoint::open(dir.path()).unwrap().names().collect::<Vec<_>>(), ["a"]);
    put_tensors(dir.path(), "model-1.safetensors", &[("b", Dtype::U8, &[1], vec![1])]);
    put_tensors(dir.path(), "model-2.safetensors", &[("c", Dtype::U8, &[1], vec![1])]);
    assert_eq!(Checkpoint::open(dir.path()).unwrap().names().collect::<Vec<_>>(), ["b", "c"]);
}

#[test]
fn what_is_no_model_folder_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    for (path, why) in [(at.join("absent"), "nothing at this path"), (at.to_owned(), "config.json")] {
        let error = open_error(&path, &[path.to_str().unwrap(), why]);
        assert!(matches!(error, Error::NotAModelFolder { .. }), "{error}");
    }
    put(at, "config.json", "{}");
    for path in [at.to_owned(), at.join("config.json")] {
        let error = open_error(&path, &[path.to_str().unwrap()]);
        assert!(matches!(error, Error::NotAModelFolder { .. }), "{error}");
    }
}

#[test]
fn a_config_that_is_no_json_says_so() {
    let dir = model(&json!({}), &[]);
    for text in [&b"{"[..], b"\xff\xfe{}", b"null"] {
        put(dir.path(), "config.json", text);
        let error = open_error(dir.path(), &["config.json"]);
        assert!(matches!(error, Error::ConfigNotJson { .. }), "{error}");
    }
    fs::remove_file(dir.path().join("config.json")).unwrap();
    fs::create_dir(dir.path().join("config.json")).unwrap();
    assert!(matches!(open_error(dir.path(), &["config.json"]), Error::Io { .. }));
}

#[test]
fn a_missing_shard_is_counted() {
    let dir = folder(&json!({}));
    put_tensors(dir.path(), "m-1.safetensors", &[("a", Dtype::U8, &[1], vec![1])]);
    let index = json!({"weight_map": {
        "a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-2.safetensors", "d": "m-3.safetensors"
    }});
    put(dir.path(), "model.safetensors.index.json", index.to_string());
    let error = open_error(dir.path(), &["m-2.safetensors", "1 of 3"]);
    assert!(matches!(error, Error::MissingShard { present: 1, total: 3, .. }), "{error}");
}

#[test]
fn an_index_must_be_true() {
    let dir = folder(&json!({}));
    put_tensors(dir.path(), "m-1.safetensors", &[("a", Dtype::U8, &[1], vec![1])]);
    put_tensors(dir.path(), "m-2.safetensors", &[("b", Dtype::U8, &[1], vec![1])]);
    for weight_map in [
        json!({"a": "m-1.safetensors", "b": "m-2.safetensors", "x.y": "m-1.safetensors"}),
        json!({"b": "m-2.safetensors", "x.y": "m-2.safetensors"}),
    ] {
        put(dir.path(), "model.safetensors.index.json", json!({ "weight_map": weight_map }).to_string());
        let error = open_error(dir.path(), &["x.y", weight_map["x.y"].as_str().unwrap()]);
        assert!(matches!(error, Error::NotInShard { .. }), "{error}");
    }
    // In a shard, but not in the one the index names.
    let index = json!({"weight_map": {"a": "m-2.safetensors", "b": "m-1.safetensors"}});
    put(dir.path(), "model.safetensors.index.json", index.to_string());
    assert!(matches!(open_error(dir.path(), &["`a`", "m-2.safetensors"]), Error::NotInShard { .. }));
}

#[test]
fn an_index_that_is_no_index_says_so() {
    let dir = folder(&json!({}));
    for text in [
        "",
        "{}",
        "[1]",
        r#"{"weight_map": {}}"#,
        r#"{"weight_map": {"a": 1}}"#,
        r#"{"weight_map": {"a": ""}}"#,
        r#"{"weight_map": {"a": "../secret.safetensors"}}"#,
        r#"{"weight_map": {"a": "/secret.safetensors"}}"#,
    ] {
        put(dir.path(), "model.safetensors.index.json", text);
        let error = open_error(dir.path(), &["model.safetensors.index.json"]);
        assert!(matches!(error, Error::BadIndex { .. }), "{error}");
    }
}

#[test]
fn a_tensor_in_two_shards_names_both() {
    let dir = folder(&json!({}));
    for name in ["model-1.safetensors", "model-2.safetensors"] {
        put_tensors(dir.path(), name, &[("same.weight", Dtype::U8, &[1], vec![1])]);
    }
    let error = open_error(dir.path(), &["same.weight", "model-1.safetensors", "model-2.safetensors"]);
    assert!(matches!(error, Error::DuplicateTensor { .. }), "{error}");
}

#[test]
fn damaged_headers_name_the_file_and_the_fault() {
    let one = |info: &str| format!(r#"{{"x.y": {info}}}"#);
    let u8s = |shape: &str, from: u64, to: u64| {
        format!(r#"{{"dtype": "U8", "shape": {shape}, "data_offsets": [{from}, {to}]}}"#)
    };
    let valid = raw(&one(&u8s("[4]", 0, 4)), &[0; 4]);
    let huge = format!("{}", u64::MAX);
    let mut header_too_long = valid.clone();
    header_too_long[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut header_a_bit_too_long = valid.clone();
    header_a_bit_too_long[0] += 5;

    let cases: Vec<(&str, Vec<u8>, Vec<&str>)> = vec![
        ("empty file", vec![], vec!["only 0 bytes"]),
        ("cut inside the length", valid[..7].to_vec(), vec!["only 7 bytes"]),
        ("header beyond the file", header_too_long, vec![&huge, "incomplete"]),
        ("header just beyond the file", header_a_bit_too_long, vec!["incomplete"]),
        ("cut inside the header", valid[..20].to_vec(), vec!["incomplete"]),
        ("header not UTF-8", [&2u64.to_le_bytes()[..], &[0xff, 0xfe]].concat(), vec!["UTF-8"]),
        ("header not JSON", raw("{\"x.y\": ", &[]), vec!["not valid"]),
        ("header of no length", raw("", &[]), vec!["not valid"]),
        ("header not an object", raw("[]", &[]), vec!["object of tensors"]),
        ("tensor not an object", raw(&one("3"), &[]), vec!["x.y"]),
        (
            "type unknown",
            raw(&one(r#"{"dtype":"Q4","shape":[],"data_offsets":[0,1]}"#), &[0]),
            vec!["x.y", "Q4"],
        ),
        ("negative axis", raw(&one(&u8s("[-4]", 0, 4)), &[0; 4]), vec!["x.y", "-4"]),
        ("cut data", valid[..valid.len() - 1].to_vec(), vec!["incomplete", "4 bytes", "has 3"]),
        ("data past the last tensor", [&valid[..], &[0]].concat(), vec!["1 bytes follow"]),
        ("offsets outside the file", raw(&one(&u8s("[9]", 0, 9)), &[0; 4]), vec!["incomplete"]),
        ("size is not type times shape", raw(&one(&u8s("[5]", 0, 4)), &[0; 4]), vec!["x.y", "[5]", "0..4"]),
        ("end before start", raw(&one(&u8s("[4]", 4, 0)), &[0; 4]), vec!["x.y", "4..0"]),
        (
            "shape overflows",
            raw(&one(&u8s("[4294967296, 4294967296, 4294967296]", 0, 4)), &[0; 4]),
            vec!["x.y", "4294967296"],
        ),
        ("bits overflow", raw(&one(&u8s(&format!("[{}]", 1u64 << 61), 0, 4)), &[0; 4]), vec!["x.y"]),
        ("a gap before", raw(&one(&u8s("[4]", 1, 5)), &[0; 5]), vec!["x.y", "gap"]),
        (
            "overlap",
            raw(&format!(r#"{{"a": {}, "x.y": {}}}"#, u8s("[4]", 0, 4), u8s("[4]", 2, 6)), &[0; 6]),
            vec!["x.y", "overlap"],
        ),
        (
            "the same name twice",
            raw(&format!(r#"{{"x.y": {}, "x.y": {}}}"#, u8s("[4]", 0, 4), u8s("[4]", 0, 4)), &[0; 4]),
            vec!["x.y", "twice"],
        ),
        (
            "half a byte",
            raw(&one(r#"{"dtype":"F4","shape":[3],"data_offsets":[0,1]}"#), &[0]),
            vec!["x.y", "F4"],
        ),
    ];

    let dir = folder(&json!({}));
    put(dir.path(), "model.safetensors", &valid);
    Checkpoint::open(dir.path()).expect("the cases below start from a file that is right");
    for (what, file, mut named) in cases {
        put(dir.path(), "model.safetensors", file);
        named.push("model.safetensors");
        let error = open_error(dir.path(), &named);
        assert!(matches!(error, Error::BadHeader { .. }), "{what}: {error}");
    }
}

#[test]
fn a_header_above_the_limit_is_refused_before_it_is_parsed() {
    let dir = folder(&json!({}));
    let path = dir.path().join("model.safetensors");
    let file = fs::File::create(&path).unwrap();
    // Sparse: costs no disk.
    file.set_len(200_000_000).unwrap();
    drop(file);
    use std::io::Write;
    let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all(&150_000_000u64.to_le_bytes()).unwrap();
    drop(file);
    let error = open_error(dir.path(), &["model.safetensors", "150000000"]);
    assert!(matches!(error, Error::BadHeader { .. }), "{error}");
}
