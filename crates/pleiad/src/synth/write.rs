//! Streaming a plan to disk.

use std::path::Path;

use checkpoint::{DRAFTER_FILE, Float, FolderWriter};
use serde_json::Value;

use super::{
    error::{Error, Result},
    plan::{Plan, Planned},
    random::Stream,
};
use crate::terminal;

/// A file beside the weights.
pub(super) type ExtraFile = (&'static str, &'static [u8]);

/// What mlx-lm makes of it too.
const SHARD_BYTES: u64 = 5 << 30;
/// Bytes made at a time: all the memory that writing takes, whatever the size of the model.
const BLOCK: usize = 4 << 20;

/// Writes a model folder. `progress` hears of every block.
pub(super) fn write(
    dst: &Path,
    config: &Value,
    plan: Plan,
    files: &[ExtraFile],
    seed: u64,
    progress: impl FnMut(u64),
) -> Result<()> {
    let needed = plan.total_bytes();
    write_folder(dst, config, plan, files, seed, progress).map_err(|error| match error {
        Error::Checkpoint(error) => Error::writing(error, needed),
        other => other,
    })
}

fn write_folder(
    dst: &Path,
    config: &Value,
    plan: Plan,
    files: &[ExtraFile],
    seed: u64,
    mut progress: impl FnMut(u64),
) -> Result<()> {
    let (tensors, drafter) = plan.into_tensors();
    let specs = |tensors: &[Planned]| tensors.iter().map(|tensor| tensor.spec.clone()).collect();
    let apart = (DRAFTER_FILE, specs(&drafter));
    let mut folder = FolderWriter::create_apart(dst, config, specs(&tensors), apart, SHARD_BYTES)?;
    for (name, contents) in files {
        folder.add_file(name, contents)?;
    }
    let mut block = vec![0; BLOCK];
    for tensor in tensors.iter().chain(&drafter) {
        let stream = Stream::new(seed, &tensor.stream);
        let float = Float::from_dtype(tensor.spec.dtype).unwrap_or(Float::F32);
        let (mut at, size) = (0, tensor.bytes());
        while at < size {
            let len = (size - at).min(BLOCK as u64);
            let block = &mut block[..len as usize];
            if terminal::interrupted() {
                return Err(Error::Interrupted);
            }
            tensor.fill.write(stream, float, at, block);
            folder.write(block)?;
            progress(len);
            at += len;
        }
    }
    Ok(folder.finish()?)
}
