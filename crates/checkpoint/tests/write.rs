//! Writing folders and files, reading them back, and leaving nothing behind on failure.

mod common;

use std::{fs, path::Path};

use checkpoint::{Checkpoint, Dtype, Error, FolderWriter, Result, TensorSpec, read_file, write_file};
use common::*;
use serde_json::{Value, json};

fn plan() -> Vec<TensorSpec> {
    vec![
        spec("none", Dtype::F32, &[0, 4]),
        spec("b", Dtype::F32, &[2, 3]),
        spec("odd", Dtype::U8, &[3]),
        spec("a", Dtype::BF16, &[4]),
        spec("nothing", Dtype::F32, &[0]),
    ]
}

const SIZES: [usize; 5] = [0, 24, 3, 8, 0];

fn data(tensor: usize) -> Vec<u8> {
    (0..SIZES[tensor]).map(|i| (tensor * 50 + i) as u8).collect()
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn write_all(dst: &Path, shard_bytes: u64) -> Result<()> {
    let mut writer = FolderWriter::create(dst, &json!({"model_type": "test"}), plan(), shard_bytes)?;
    assert_eq!(writer.total_bytes(), 35);
    for tensor in 0..SIZES.len() {
        // In pieces, as a quantiser would.
        for piece in data(tensor).chunks(5) {
            writer.write(piece)?;
        }
    }
    writer.add_file("tokenizer.json", b"{}")?;
    assert!(!dst.exists(), "the name appears only when all is written");
    writer.finish()
}

#[test]
fn folders_read_back_at_every_shard_size() {
    for (shard_bytes, files) in [(u64::MAX, 1), (35, 1), (34, 2), (24, 2), (10, 3), (1, 3), (0, 3)] {
        let dir = tempfile::tempdir().unwrap();
        let dst = dir.path().join("new/model");
        write_all(&dst, shard_bytes).unwrap();
        assert_eq!(entries(dst.parent().unwrap()), ["model"]);
        let shards: Vec<_> = entries(&dst).into_iter().filter(|n| n.ends_with(".safetensors")).collect();
        assert_eq!(shards.len(), files, "{shards:?}");
        let index = dst.join("model.safetensors.index.json");
        if shards.len() == 1 {
            assert_eq!(shards, ["model.safetensors"]);
            assert!(!index.exists());
        } else {
            let index: Value = serde_json::from_str(&fs::read_to_string(index).unwrap()).unwrap();
            assert_eq!(index["metadata"]["total_size"], 35);
            assert_eq!(index["weight_map"].as_object().unwrap().len(), 5);
            assert_eq!(shards[0], format!("model-00001-of-{:05}.safetensors", shards.len()));
        }
        for shard in &shards {
            let file = fs::read(dst.join(shard)).unwrap();
            let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
            assert_eq!(header % 8, 0);
            let header: Value = serde_json::from_slice(&file[8..8 + header]).unwrap();
            assert_eq!(header["__metadata__"], json!({"format": "mlx"}));
        }

        let checkpoint = Checkpoint::open(&dst).unwrap();
        assert_eq!(checkpoint.config().model_type().unwrap(), "test");
        assert_eq!(checkpoint.total_bytes(), 35);
        for (i, spec) in plan().into_iter().enumerate() {
            let tensor = checkpoint.tensor(&spec.name).unwrap();
            assert_eq!((tensor.dtype, &tensor.shape), (spec.dtype, &spec.shape));
            assert_eq!(&*tensor.bytes, &data(i)[..]);
        }
        assert_eq!(fs::read(dst.join("tokenizer.json")).unwrap(), b"{}");
    }
}

#[test]
fn some_tensors_have_a_file_of_their_own() {
    for (shard_bytes, model) in [(u64::MAX, 1), (10, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let dst = dir.path().join("m");
        let mut tensors = plan();
        let apart = tensors.split_off(tensors.len() - 2);
        let mut writer =
            FolderWriter::create_apart(&dst, &json!({}), tensors, ("head.safetensors", apart), shard_bytes)
                .unwrap();
        assert!(writer.add_file("head.safetensors", b"").is_err());
        (0..SIZES.len()).for_each(|tensor| writer.write(&data(tensor)).unwrap());
        writer.finish().unwrap();
        let names = entries(&dst);
        let of_model = |name: &&String| name.starts_with("model") && name.ends_with(".safetensors");
        assert_eq!(names.iter().filter(of_model).count(), model, "{names:?}");
        let head = read_file(&dst.join("head.safetensors")).unwrap();
        assert_eq!(head.into_keys().collect::<Vec<_>>(), ["a", "nothing"]);
        let opened = Checkpoint::open(&dst).unwrap();
        for (tensor, spec) in plan().into_iter().enumerate() {
            assert_eq!(opened.tensor(&spec.name).unwrap().bytes[..], data(tensor), "{}", spec.name);
        }
    }
}

#[test]
fn a_folder_without_tensors_opens() {
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("m");
    FolderWriter::create(&dst, &json!({}), vec![], 100).unwrap().finish().unwrap();
    assert_eq!(Checkpoint::open(&dst).unwrap().names().count(), 0);
}

#[test]
fn what_exists_is_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("m");
    fs::create_dir(&dst).unwrap();
    let error = write_all(&dst, 100).unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    assert_names(&error, &[dst.to_str().unwrap()]);
    fs::remove_dir(&dst).unwrap();

    // Another run, at work or killed.
    let partial = dir.path().join("m.partial");
    fs::create_dir(&partial).unwrap();
    put(&partial, "theirs", "x");
    let error = write_all(&dst, 100).unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    assert_names(&error, &[partial.to_str().unwrap(), "remove it"]);
    assert_eq!(entries(&partial), ["theirs"]);
    fs::remove_dir_all(&partial).unwrap();

    // The name was taken while we wrote.
    let writer = FolderWriter::create(&dst, &json!({}), vec![], 100).unwrap();
    fs::create_dir(&dst).unwrap();
    assert!(matches!(writer.finish().unwrap_err(), Error::AlreadyExists { .. }));
    assert_eq!(entries(dir.path()), ["m"]);
}

#[test]
fn a_writer_that_is_dropped_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = FolderWriter::create(&dir.path().join("m"), &json!({}), plan(), 10).unwrap();
    writer.write(&data(1)).unwrap();
    assert_eq!(entries(dir.path()), ["m.partial"]);
    drop(writer);
    assert!(entries(dir.path()).is_empty());
}

#[test]
fn data_must_follow_the_plan() {
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("m");
    let start = || FolderWriter::create(&dst, &json!({}), plan(), 30).unwrap();
    let refused = |result: Result<()>, named: &[&str]| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::WritePlan { .. }), "{error}");
        assert_names(&error, named);
    };

    let mut writer = start();
    writer.write(&[0; 20]).unwrap();
    refused(writer.write(&[0; 5]), &["`b`", "4 bytes", "got 5"]);
    // Even if what follows would fill the plan: one of the two sides is mistaken about what the bytes are.
    for size in [4, 3, 8] {
        let _ = writer.write(&vec![0; size]);
    }
    refused(writer.finish(), &["earlier"]);

    let mut writer = start();
    writer.write(&data(1)).unwrap();
    writer.write(&[1]).unwrap();
    refused(writer.finish(), &["`odd`", "1 of 3", "2 tensors"]);

    let mut writer = start();
    for tensor in 1..4 {
        writer.write(&data(tensor)).unwrap();
    }
    refused(writer.write(&[0]), &["follow the last tensor"]);
    drop(writer);

    let twice = vec![spec("x.y", Dtype::U8, &[1]), spec("x.y", Dtype::U8, &[1])];
    for tensors in [
        twice,
        vec![spec("__metadata__", Dtype::U8, &[1])],
        vec![spec("x", Dtype::F4, &[1])],
        vec![spec("x", Dtype::F32, &[usize::MAX, 2])],
    ] {
        let name = tensors[0].name.clone();
        refused(FolderWriter::create(&dst, &json!({}), tensors, 30).map(|_| ()), &[&name]);
    }
    assert!(entries(dir.path()).is_empty());
}

#[test]
fn added_files_stay_in_the_folder_and_replace_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = FolderWriter::create(&dir.path().join("m"), &json!({}), plan(), 10).unwrap();
    for name in [
        "../x",
        "a/b",
        "/x",
        "..",
        "",
        "a/",
        "config.json",
        "model-00001-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ] {
        let error = writer.add_file(name, b"").unwrap_err();
        assert!(matches!(error, Error::WritePlan { .. }), "{error}");
        assert_names(&error, &[name]);
    }
    writer.add_file("vocab.txt", b"").unwrap();
}

#[test]
fn single_files_are_whole_or_absent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let (a, b) = (spec("a", Dtype::F32, &[2]), spec("b", Dtype::U8, &[1]));
    write_file(&path, &[(b.clone(), &[9]), (a.clone(), &ramp(2))]).unwrap();
    let before = fs::read(&path).unwrap();

    let error = write_file(&path, &[(a, &[0; 7])]).unwrap_err();
    assert!(matches!(error, Error::WritePlan { .. }), "{error}");
    assert_names(&error, &["model.safetensors", "`a`", "8 bytes", "got 7"]);
    let absent = dir.path().join("absent/model.safetensors");
    assert!(matches!(write_file(&absent, &[(b.clone(), &[9])]), Err(Error::Io { .. })));
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    assert!(matches!(write_file(&folder, &[(b, &[9])]), Err(Error::Io { .. })));

    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(entries(dir.path()), ["folder", "model.safetensors"]);
    put(dir.path(), "config.json", "{}");
    assert_eq!(Checkpoint::open(dir.path()).unwrap().vector("a", &[2]).unwrap(), [0.0, 0.125]);
}
