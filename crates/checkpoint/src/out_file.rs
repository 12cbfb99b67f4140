//! Writing one safetensors file.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};

use crate::{Error, Result, header::MAX_HEADER, header::tensor_bytes};

/// What a tensor will be, before its data is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in the checkpoint.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Axes, slowest first.
    pub shape: Vec<usize>,
}

/// One safetensors file from tensors in memory, in the order given. It appears whole or not at all: the data
/// goes to a temporary file beside it that is renamed at the end. A file that was at `path` is replaced.
pub fn write_file(path: &Path, tensors: &[(TensorSpec, &[u8])]) -> Result<()> {
    let specs: Vec<TensorSpec> = tensors.iter().map(|(spec, _)| spec.clone()).collect();
    let sizes = check_plan(path, &specs)?;
    for ((spec, bytes), size) in tensors.iter().zip(&sizes) {
        if bytes.len() as u64 != *size {
            let problem = format!(
                "tensor `{}` of shape {:?} needs {size} bytes, got {}",
                spec.name,
                spec.shape,
                bytes.len()
            );
            return Err(plan(path, problem));
        }
    }
    let Some(name) = path.file_name() else {
        return Err(plan(path, "the path has no file name".to_owned()));
    };
    let mut temporary = name.to_owned();
    // The process id keeps two runs that write the same file apart; the last rename wins, with a whole file.
    temporary.push(format!(".{}.partial", std::process::id()));
    let temporary = path.with_file_name(temporary);

    let write = || {
        let mut out = OutFile::create(&temporary, &specs)?;
        for (_, bytes) in tensors {
            out.write(bytes)?;
        }
        out.close()?;
        fs::rename(&temporary, path).map_err(Error::io(path))?;
        sync_folder(parent(path))
    };
    write().inspect_err(|_| {
        // The error at hand matters more than one about tidying up.
        let _ = fs::remove_file(&temporary);
    })
}

/// The size of each tensor; fails on a plan that no file could hold.
pub(crate) fn check_plan(path: &Path, tensors: &[TensorSpec]) -> Result<Vec<u64>> {
    let mut names = HashSet::new();
    let mut total = 0u64;
    let mut sizes = Vec::with_capacity(tensors.len());
    for TensorSpec { name, dtype, shape } in tensors {
        if name == "__metadata__" || !names.insert(name) {
            return Err(plan(path, format!("tensor name `{name}` is reserved or given twice")));
        }
        let size = tensor_bytes(*dtype, shape).map(|size| size as u64);
        let sum = size.and_then(|size| total.checked_add(size));
        let (Some(size), Some(sum)) = (size, sum) else {
            let problem = format!("tensor `{name}` of type {dtype} cannot have shape {shape:?}");
            return Err(plan(path, problem));
        };
        total = sum;
        sizes.push(size);
    }
    Ok(sizes)
}

pub(crate) fn plan(path: &Path, problem: String) -> Error {
    Error::WritePlan { path: path.to_owned(), problem }
}

/// Bytes that go to the system at a time, at multiples of their number: it then keeps the file in large pages, and whoever maps
/// it right afterwards reads it half as fast again.
const BLOCK: usize = 4 << 20;

/// A file that is written in whole blocks.
#[derive(Debug)]
struct Blocks {
    file: File,
    block: Vec<u8>,
}

impl Blocks {
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - self.block.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.block.len() == BLOCK {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.block)?;
        self.block.clear();
        Ok(())
    }
}

/// A safetensors file whose header is written and whose data is being appended.
#[derive(Debug)]
pub(crate) struct OutFile {
    path: PathBuf,
    out: Blocks,
}

impl OutFile {
    /// The tensors must have passed [`check_plan`].
    pub fn create(path: &Path, tensors: &[TensorSpec]) -> Result<OutFile> {
        let header = header(path, tensors)?;
        let file = File::create(path).map_err(Error::io(path))?;
        let mut out = OutFile { path: path.to_owned(), out: Blocks { file, block: Vec::new() } };
        out.write(&(header.len() as u64).to_le_bytes())?;
        out.write(&header)?;
        Ok(out)
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write(bytes).map_err(Error::io(&self.path))
    }

    /// Flushes to the disk itself, so that a rename afterwards never shows a file whose data is still on its
    /// way.
    pub fn close(mut self) -> Result<()> {
        self.out.flush().and_then(|()| self.out.file.sync_all()).map_err(Error::io(&self.path))
    }
}

/// Data starts at a multiple of this: a cache line.
const ALIGNMENT: usize = 64;

/// The header's JSON, padded so that the data starts at a multiple of [`ALIGNMENT`].
fn header(path: &Path, tensors: &[TensorSpec]) -> Result<Vec<u8>> {
    let mut start = 0;
    let infos = tensors
        .iter()
        .map(|TensorSpec { name, dtype, shape }| {
            let end = tensor_bytes(*dtype, shape)
                .and_then(|size| size.checked_add(start))
                .ok_or_else(|| plan(path, format!("tensor `{name}` is too large")))?;
            let info = TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets: (start, end) };
            start = end;
            Ok((name.clone(), info))
        })
        .collect::<Result<Vec<_>>>()?;
    // mlx-lm writes this note, and transformers refuses files without it.
    let note = HashMap::from([("format".to_owned(), "mlx".to_owned())]);
    let metadata = Metadata::new(Some(note), infos).map_err(|error| plan(path, error.to_string()))?;
    let mut json = serde_json::to_vec(&metadata).map_err(|error| plan(path, error.to_string()))?;
    // The length before it takes 8 bytes.
    json.resize((json.len() + 8).next_multiple_of(ALIGNMENT) - 8, b' ');
    if json.len() as u64 > MAX_HEADER {
        return Err(plan(path, format!("a header of {} bytes is more than the format allows", json.len())));
    }
    Ok(json)
}

/// The folder a path is in; `.` for a bare name.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a rename inside `folder` durable. Only Unix lets one sync a folder.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(folder).and_then(|file| file.sync_all()).map_err(Error::io(folder))?;
    }
    Ok(())
}
