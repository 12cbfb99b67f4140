//! Whole stores: what comes, in which order, and what happens when the disk fails.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use checkpoint::{Dtype, Float, MappedFile, TensorSpec, Weight, read_file, write_file};

use crate::disk::Files;
use crate::{Disk, Error, Reader, Source, Store, StoreOptions};

const EXPERTS: usize = 12;
const ROWS: usize = 7;
const COLS: usize = 333;

/// A file with three stacks for each layer, whose values tell where they are from.
fn model(folder: &Path, layers: usize) -> (PathBuf, Vec<[Weight; 3]>) {
    let path = folder.join("model.safetensors");
    let stack = |stack: usize| -> Vec<u8> {
        (0..EXPERTS * ROWS * COLS).flat_map(|i| ((1_000_000 * stack + i) as f32).to_le_bytes()).collect()
    };
    let stacks: Vec<Vec<u8>> = (0..3 * layers).map(stack).collect();
    let spec = |i| TensorSpec { name: format!("{i}"), dtype: Dtype::F32, shape: vec![EXPERTS, ROWS, COLS] };
    let tensors: Vec<_> = stacks.iter().enumerate().map(|(i, bytes)| (spec(i), &bytes[..])).collect();
    write_file(&path, &tensors).unwrap();
    let tensors = read_file(&path).unwrap();
    let weight = |i: usize| {
        Weight::plain("w", EXPERTS, ROWS, COLS, Float::F32, tensors[&i.to_string()].bytes.clone()).unwrap()
    };
    let weights = (0..layers).map(|l| [3 * l, 3 * l + 1, 3 * l + 2].map(weight)).collect();
    (path, weights)
}

/// Room for so many experts.
fn options(slots: usize) -> StoreOptions {
    let expert = 3 * (ROWS * COLS * 4 + 2 * 4096);
    StoreOptions { threads: 3, ..StoreOptions::new((slots * expert) as u64) }
}

fn add_all(store: &Store, weights: &[[Weight; 3]]) {
    for (i, parts) in weights.iter().enumerate() {
        assert_eq!(store.add_layer(parts.each_ref()).unwrap(), Some(i));
    }
}

/// Runs a pass and compares what comes.
fn run(store: &Store, weights: &[[Weight; 3]], layer: usize, experts: &[usize]) -> Result<(), Error> {
    let uses: Vec<_> = experts.iter().map(|e| (*e, 1)).collect();
    let mut pass = store.pass(layer, 1, &uses);
    let mut seen = Vec::new();
    loop {
        let here = pass.wait()?;
        if here.is_empty() {
            break;
        }
        for found in here {
            let expert = found.number;
            seen.push(expert);
            for (part, expected) in found.parts.iter().zip(&weights[layer]) {
                assert_eq!(part.count, 1);
                for row in 0..ROWS {
                    let (mut a, mut b) = ([0.0; COLS], [1.0; COLS]);
                    part.decode_row(0, row, &mut a);
                    expected.decode_row(expert, row, &mut b);
                    assert_eq!(a, b);
                }
            }
        }
    }
    assert_eq!(seen, experts);
    Ok(())
}

#[test]
fn experts_come_in_order_however_few_slots_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let (_, weights) = model(folder.path(), 3);
    for slots in [1, 2, 5, 36] {
        let store = Store::new(options(slots)).unwrap();
        add_all(&store, &weights);
        let mut random = 1u64;
        for step in 0..200 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(step);
            let experts: Vec<usize> = (0..EXPERTS).filter(|e| random >> (20 + e) & 1 == 1).collect();
            run(&store, &weights, step as usize % 3, &experts).unwrap();
        }
        let stats = store.take_stats();
        let all = slots == 36;
        assert_eq!(stats.misses <= 36, all, "{slots} slots: {stats:?}");
        assert_eq!(store.take_stats().hits, 0);
    }
}

/// Of all experts.
fn bytes_of(parts: &[Weight; 3]) -> u64 {
    parts.iter().map(Weight::stored_bytes).sum()
}

#[test]
fn what_is_expected_is_read_in_advance() {
    let folder = tempfile::tempdir().unwrap();
    let (_, weights) = model(folder.path(), 2);
    let store = Store::new(StoreOptions { guesses: 2, ..options(8) }).unwrap();
    add_all(&store, &weights);
    store.expect(0, [3, 7, 8], true);
    run(&store, &weights, 0, &[2, 7]).unwrap();
    store.expect(1, [], true);
    store.expect(1, [2, 7, 9], false);
    run(&store, &weights, 1, &[2, 7, 9]).unwrap();
    // Another than was expected, even for certain.
    store.expect(1, [3], false);
    run(&store, &weights, 1, &[4]).unwrap();
    let stats = store.take_stats();
    assert_eq!((stats.guessed, stats.guessed_right, stats.misses), (2, 1, 6));
}

#[test]
fn a_step_that_needs_everything_reads_the_next_layer_ahead() {
    let folder = tempfile::tempdir().unwrap();
    let (_, weights) = model(folder.path(), 3);
    let store = Store::new(options(36)).unwrap();
    add_all(&store, &weights);
    let uses: Vec<_> = (0..EXPERTS).map(|e| (e, 2)).collect();
    let mut pass = store.pass(0, 2, &uses);
    while !pass.wait().unwrap().is_empty() {}
    let mut bytes = 0;
    let layer = bytes_of(&weights[0]);
    while bytes < 2 * layer {
        bytes += store.take_stats().bytes_read;
        std::thread::sleep(Duration::from_millis(1));
    }
    run(&store, &weights, 1, &[0, 3, 11]).unwrap();
    run(&store, &weights, 1, &[0, 3]).unwrap();
    let stats = store.take_stats();
    assert_eq!((stats.hits, stats.misses), (2, 3));
}

#[test]
fn whole_weights_are_copied() {
    let folder = tempfile::tempdir().unwrap();
    let (_, weights) = model(folder.path(), 1);
    let reader = Reader::new(3);
    let copy = reader.copy(&weights[0][1]).unwrap();
    assert_eq!((copy.count, copy.rows, copy.cols), (EXPERTS, ROWS, COLS));
    assert!(copy.pieces(3)[0].place().is_none());
    // Views of the same bytes stay views of the same bytes.
    let [a, b] = [0..2, 3..7].map(|rows| reader.copy(&weights[0][1].row_range(rows)).unwrap());
    assert_eq!(b.pieces(0)[0].as_ptr().addr() - a.pieces(0)[0].as_ptr().addr(), 3 * COLS * 4);
    for (a, b) in (0..EXPERTS).map(|e| (copy.pieces(e), weights[0][1].pieces(e))) {
        assert_eq!(&*a[0], &*b[0]);
    }
}

#[test]
fn a_file_that_was_cut_or_changed_is_an_error_and_never_data() {
    let folder = tempfile::tempdir().unwrap();
    let (path, weights) = model(folder.path(), 1);
    let store = Store::new(options(4)).unwrap();
    add_all(&store, &weights);
    run(&store, &weights, 0, &[0, 1]).unwrap();

    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(io::SeekFrom::End(-5)).unwrap();
    file.write_all(&[1; 5]).unwrap();
    drop(file);
    let fails = |experts: &[usize]| {
        let uses: Vec<_> = experts.iter().map(|e| (*e, 1)).collect();
        let mut pass = store.pass(0, 1, &uses);
        loop {
            match pass.wait() {
                Ok(here) => assert!(!here.is_empty(), "all came"),
                Err(error) => break error.to_string(),
            }
        }
    };
    assert!(fails(&[5]).contains("model.safetensors: the file has been changed"), "{}", fails(&[5]));
    File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    assert!(fails(&[1, 9]).contains("model.safetensors: the file has been"), "{}", fails(&[1, 9]));
    // What is in memory is still good.
    let mut pass = store.pass(0, 1, &[(0, 1), (1, 1)]);
    assert_eq!(pass.wait().unwrap().len(), 2);
}

#[test]
fn a_file_that_was_cut_inside_an_expert_is_said_to_have_changed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, weights) = model(folder.path(), 1);
    let store = Store::new(options(4)).unwrap();
    add_all(&store, &weights);
    let (_, range) = weights[0][0].pieces(3)[0].place().map(|(file, range)| (file.clone(), range)).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(range.start + 4321).unwrap();
    let error = run(&store, &weights, 0, &[3]).unwrap_err().to_string();
    assert!(
        error.ends_with("model.safetensors: the file has been changed since the model was opened"),
        "{error}"
    );
}

#[test]
fn a_file_that_was_replaced_before_it_is_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (path, weights) = model(folder.path(), 1);
    std::fs::copy(&path, folder.path().join("copy")).unwrap();
    std::fs::rename(folder.path().join("copy"), &path).unwrap();
    let error = Store::new(options(4)).unwrap().add_layer(weights[0].each_ref()).unwrap_err();
    assert!(error.to_string().contains("changed"), "{error}");
}

/// A disk that can be told to fail, or to keep silent.
struct Faulty(Arc<AtomicU8>);

const SOUND: u8 = 0;
const FAILING: u8 = 1;
const SILENT: u8 = 2;

impl Disk for Faulty {
    fn open(&self, file: &Arc<MappedFile>) -> io::Result<Arc<dyn Source>> {
        Ok(Arc::new(FaultyFile(Files.open(file)?, self.0.clone())))
    }
}

struct FaultyFile(Arc<dyn Source>, Arc<AtomicU8>);

impl Source for FaultyFile {
    fn read(&self, start: u64, out: &mut [u8], needed: usize) -> io::Result<()> {
        while self.1.load(Ordering::Relaxed) == SILENT {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.1.load(Ordering::Relaxed) == FAILING {
            out.fill(0xee);
            return Err(io::Error::other("a sector is gone"));
        }
        self.0.read(start, out, needed)
    }
}

#[test]
fn a_failing_or_silent_disk_fails_its_steps_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (_, weights) = model(folder.path(), 2);
    let condition = Arc::new(AtomicU8::new(SOUND));
    let options = StoreOptions { patience: Duration::from_millis(50), ..options(5) };
    let reader = Reader::with_disk(1, Box::new(Faulty(condition.clone())));
    let store = Store::with_reader(options, reader).unwrap();
    add_all(&store, &weights);
    run(&store, &weights, 0, &[1, 2, 3]).unwrap();
    for round in 0..3 {
        condition.store(FAILING, Ordering::Relaxed);
        let error = run(&store, &weights, 1, &[4, 5, 6]).unwrap_err();
        assert!(error.to_string().ends_with("model.safetensors: a sector is gone"), "{error}");
        condition.store(SOUND, Ordering::Relaxed);
        run(&store, &weights, 1, &[4, 5, 6]).unwrap();

        condition.store(SILENT, Ordering::Relaxed);
        let begun = Instant::now();
        assert_eq!(run(&store, &weights, 0, &[round, 7, 8]), Err(Error::Silent { seconds: 0 }));
        assert!(begun.elapsed() < Duration::from_secs(5));
        // Asked again while the first reads are still out.
        assert_eq!(run(&store, &weights, 1, &[0, 1, 2]), Err(Error::Silent { seconds: 0 }));
        condition.store(SOUND, Ordering::Relaxed);
        run(&store, &weights, 0, &[round, 7, 8]).unwrap();
        run(&store, &weights, 1, &[0, 1, 2, 4, 9]).unwrap();
    }
}
