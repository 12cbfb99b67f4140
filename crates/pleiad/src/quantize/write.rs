//! Streaming a plan to disk.
//!
//! A matrix is read once, in blocks that threads quantise while earlier ones are written. Its codes go straight to
//! their shard; scales and biases come after them there, and of a large stack are too many to keep, so they wait in
//! scratch files.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;

use checkpoint::{DRAFTER_FILE, Float, FolderWriter, QuantSpec};
use serde_json::Value;

use super::encode::{Encoded, encode, round_to};
use super::error::{Error, Result};
use super::plan::{Contents, Plan, Planned};
use super::source::{Block, Matrices};
use crate::terminal;

/// What mlx-lm makes of it too.
const SHARD_BYTES: u64 = 5 << 30;
/// More threads than this only take memory: the disk is slower than they are.
const MOST_THREADS: usize = 32;
/// Bytes of scales copied at a time.
const COPY: usize = 1 << 20;

/// Writes the planned folder with its other files. `progress` hears of every block's bytes in the source.
pub fn write(
    dst: &Path,
    config: &Value,
    plan: &Plan,
    files: &[(String, PathBuf)],
    progress: impl FnMut(u64),
) -> Result<()> {
    write_folder(dst, config, plan, files, progress).map_err(|error| error.writing(plan.total_bytes()))
}

fn write_folder(
    dst: &Path,
    config: &Value,
    plan: &Plan,
    files: &[(String, PathBuf)],
    mut progress: impl FnMut(u64),
) -> Result<()> {
    let specs = |weights: &[Planned]| weights.iter().flat_map(Planned::specs).collect();
    let (model, drafter) = plan.weights.split_at(plan.drafter);
    let apart = (DRAFTER_FILE, specs(drafter));
    let mut folder = FolderWriter::create_apart(dst, config, specs(model), apart, SHARD_BYTES)?;
    for (name, path) in files {
        folder.add_file(name, &fs::read(path).map_err(Error::file(path))?)?;
    }
    let mut scratch = [Scratch::create(dst, "scales")?, Scratch::create(dst, "biases")?];
    for weight in &plan.weights {
        match &weight.contents {
            Contents::Values { values, had, .. } => {
                let mut values = values.clone();
                round_to(*had, &mut values);
                folder.write(&weight.float.encode(&values))?;
                progress((values.len() * had.bytes()) as u64);
            }
            Contents::Matrices { source, layout: None } => {
                write_plain(&mut folder, source, weight.float, &mut progress)?;
            }
            Contents::Matrices { source, layout: Some(layout) } => {
                write_quantised(&mut folder, &mut scratch, source, *layout, weight.float, &mut progress)?;
            }
        }
    }
    scratch.into_iter().try_for_each(Scratch::remove)?;
    Ok(folder.finish()?)
}

/// Decodes a block to what the type it will be stored in can hold.
fn read(source: &Matrices, block: &Block, float: Float) -> Vec<f32> {
    let mut values = source.read(block);
    if source.float() != Ok(float) {
        round_to(float, &mut values);
    }
    values
}

fn write_plain(
    folder: &mut FolderWriter,
    source: &Matrices,
    float: Float,
    mut progress: impl FnMut(u64),
) -> Result<()> {
    in_order(
        source,
        |block| float.encode(&read(source, block, float)),
        |bytes, done| {
            folder.write(&bytes)?;
            progress(done);
            Ok(())
        },
    )
}

fn write_quantised(
    folder: &mut FolderWriter,
    scratch: &mut [Scratch; 2],
    source: &Matrices,
    layout: QuantSpec,
    float: Float,
    mut progress: impl FnMut(u64),
) -> Result<()> {
    let [scales, biases] = scratch;
    in_order(
        source,
        |block| encode(&read(source, block, float), source.cols(), layout, float),
        |encoded: Encoded, done| {
            folder.write(&encoded.codes)?;
            scales.keep(&encoded.scales)?;
            biases.keep(&encoded.biases)?;
            progress(done);
            Ok(())
        },
    )?;
    scales.move_to(folder)?;
    biases.move_to(folder)
}

/// Makes something of every block, on all cores, and takes the results in the order of the blocks, with the bytes of
/// the source that each stands for.
fn in_order<T: Send>(
    source: &Matrices,
    make: impl Fn(&Block) -> T + Sync,
    mut take: impl FnMut(T, u64) -> Result<()>,
) -> Result<()> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let mut blocks = source.blocks();
    let count = source.blocks().count().max(1) as u64;
    let share = |i: u64| (u128::from(source.stored_bytes()) * u128::from(i) / u128::from(count)) as u64;
    thread::scope(|scope| {
        let make = &make;
        let mut running = VecDeque::new();
        for i in 0.. {
            // One more than there are cores: while this thread writes, they have work.
            while running.len() <= threads
                && let Some(block) = blocks.next()
            {
                running.push_back(scope.spawn(move || make(&block)));
            }
            let Some(next) = running.pop_front() else { break };
            let made = next.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            if terminal::interrupted() {
                return Err(Error::Interrupted);
            }
            take(made, share(i + 1) - share(i))?;
        }
        Ok(())
    })
}

/// A file for what has to wait, inside the folder being written: whoever removes that removes it too.
struct Scratch {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Scratch {
    /// `dst` is the folder's final name; until it has it, it is `{dst}.partial`.
    fn create(dst: &Path, name: &str) -> Result<Scratch> {
        let mut folder = dst.file_name().unwrap_or_default().to_owned();
        folder.push(".partial");
        let path = dst.with_file_name(folder).join(format!("{name}.scratch"));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(Error::file(&path))?;
        Ok(Scratch { path, file, len: 0 })
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::file(&self.path))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Appends what was kept to the folder, and starts again.
    fn move_to(&mut self, folder: &mut FolderWriter) -> Result<()> {
        let failed = Error::file(&self.path);
        self.file.seek(SeekFrom::Start(0)).map_err(&failed)?;
        let mut buffer = vec![0; COPY.min(self.len as usize)];
        while self.len > 0 {
            let part = &mut buffer[..COPY.min(self.len as usize)];
            self.file.read_exact(part).map_err(&failed)?;
            folder.write(part)?;
            self.len -= part.len() as u64;
        }
        self.file.seek(SeekFrom::Start(0)).map_err(&failed)?;
        Ok(())
    }

    fn remove(self) -> Result<()> {
        drop(self.file);
        fs::remove_file(&self.path).map_err(Error::file(&self.path))
    }
}
