//! What can be wrong with a model folder, and how it is said.

use std::path::{Path, PathBuf};

use safetensors::Dtype;

use crate::Format;

/// `std::result::Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can be wrong with a model folder. Each message names the file or the tensor it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused to read or write.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// The path is no folder, or lacks `config.json` or weights.
    #[error("{} is not a model folder: {problem}", path.display())]
    NotAModelFolder {
        /// The folder.
        path: PathBuf,
        /// What is missing.
        problem: String,
    },

    /// `config.json` cannot be parsed.
    #[error("{} is not valid JSON: {problem}", path.display())]
    ConfigNotJson {
        /// The file.
        path: PathBuf,
        /// What the parser said, with line and column.
        problem: String,
    },

    /// A field of `config.json` is missing or has an impossible value.
    #[error("{}: `{field}` {problem}", path.display())]
    ConfigField {
        /// The file.
        path: PathBuf,
        /// The field, with dots between levels.
        field: String,
        /// What is wrong with it: reads after the field's name, as in "is missing".
        problem: String,
    },

    /// `model.safetensors.index.json` cannot be used.
    #[error("{} is not a usable index: {problem}", path.display())]
    BadIndex {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },

    /// The index names a shard that is not in the folder.
    #[error(
        "{} lacks the shard {shard}; {present} of {total} shards are there: fetch the missing ones",
        folder.display()
    )]
    MissingShard {
        /// The folder.
        folder: PathBuf,
        /// The first shard that is missing.
        shard: String,
        /// How many of the shards the index names are there.
        present: usize,
        /// How many shards the index names.
        total: usize,
    },

    /// A safetensors file whose header is damaged, or does not fit the file.
    #[error("{}: {problem}", path.display())]
    BadHeader {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },

    /// Two shards hold a tensor of the same name.
    #[error(
        "tensor `{name}` is in both {} and {}: remove the file that does not belong",
        first.display(),
        second.display()
    )]
    DuplicateTensor {
        /// The tensor.
        name: String,
        /// A shard that has it.
        first: PathBuf,
        /// Another shard that has it.
        second: PathBuf,
    },

    /// The index puts a tensor into a shard that does not have it.
    #[error(
        "the index of {} says that tensor `{name}` is in {shard}, but it is not: fetch that shard again",
        folder.display()
    )]
    NotInShard {
        /// The tensor.
        name: String,
        /// The shard that should have it.
        shard: String,
        /// The folder.
        folder: PathBuf,
    },

    /// The model needs a tensor that no shard has.
    #[error("tensor `{name}` is missing from {}", folder.display())]
    MissingTensor {
        /// The tensor.
        name: String,
        /// The folder.
        folder: PathBuf,
    },

    /// A tensor does not have the shape the model needs.
    #[error("tensor `{name}` has shape {found:?}, expected {expected:?}")]
    WrongShape {
        /// The tensor.
        name: String,
        /// The shape that fits the config.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },

    /// The rows of a quantised tensor do not divide into groups.
    #[error(
        "tensor `{name}` has rows of {cols} values, expected a multiple of its quantisation group {group}"
    )]
    PartialGroup {
        /// The tensor.
        name: String,
        /// Values in a row.
        cols: usize,
        /// Values in a group.
        group: usize,
    },

    /// The bytes given for a tensor are not as many as its shape needs.
    #[error("tensor `{name}` has {found} bytes, expected {expected}")]
    WrongSize {
        /// The tensor.
        name: String,
        /// Bytes the shape needs; wider than `usize` because a shape can ask for more than memory can
        /// address.
        expected: u128,
        /// Bytes there are.
        found: usize,
    },

    /// A tensor does not have the element type the model needs.
    #[error("tensor `{name}` has element type {found}, expected {expected}")]
    WrongDtype {
        /// The tensor.
        name: String,
        /// What would have been right.
        expected: String,
        /// The type in the file.
        found: Dtype,
    },

    /// A quantised layout that this program cannot read.
    #[error("`{path}`: {found} is not supported; supported are {supported}")]
    UnsupportedQuantization {
        /// The tensor path, or the field of `config.json` when it is about all tensors.
        path: String,
        /// What the file asks for.
        found: String,
        /// What would work.
        supported: String,
    },

    /// Matrices that should make a stack are stored in different formats.
    #[error(
        "`{name}` is stored as {found:?}, but `{first}`, which must go together with it, as {expected:?}"
    )]
    MixedFormats {
        /// The tensor path of the one that differs.
        name: String,
        /// Its format.
        found: Format,
        /// The tensor path of the first of the stack.
        first: String,
        /// Its format.
        expected: Format,
    },

    /// Scales exist, but `config.json` does not say how the weight was quantised.
    #[error(
        "{}: `{name}` is quantised (it has scales), but config.json gives no bits and group_size for it \
         under `quantization`",
        folder.display()
    )]
    UndeclaredQuantization {
        /// The tensor path.
        name: String,
        /// The folder.
        folder: PathBuf,
    },

    /// A folder or file about to be written is already there.
    #[error("{} already exists: {hint}", path.display())]
    AlreadyExists {
        /// The folder or file.
        path: PathBuf,
        /// What to do.
        hint: &'static str,
    },

    /// What was written does not follow the plan the writer was given.
    #[error("cannot write {}: {problem}", path.display())]
    WritePlan {
        /// The folder or file being written.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

impl Error {
    /// For `map_err` on anything that touches `path`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_owned(), source }
    }
}
