//! Shared, immutable bytes: part of a mapped file or of memory.

use std::{
    fmt,
    fs::{File, Metadata},
    io,
    ops::{Deref, Range},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use memmap2::Mmap;

use crate::{Error, Result};

/// A file as it was when it was mapped, for those who read it themselves.
#[derive(PartialEq, Eq, Debug)]
pub struct MappedFile {
    /// Where it was found.
    pub path: PathBuf,
    /// Its length.
    pub len: u64,
    modified: Option<SystemTime>,
    /// Device and number, where files have them.
    number: Option<(u64, u64)>,
}

impl MappedFile {
    fn new(path: &Path, metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let number = {
            use std::os::unix::fs::MetadataExt;
            Some((metadata.dev(), metadata.ino()))
        };
        #[cfg(not(unix))]
        let number = None;
        Self { path: path.to_owned(), len: metadata.len(), modified: metadata.modified().ok(), number }
    }

    /// Whether an open file is still the one that was mapped, with the contents that it had: its length and the time of
    /// its last change tell.
    pub fn is_unchanged(&self, file: &File) -> io::Result<bool> {
        Ok(*self == Self::new(&self.path, &file.metadata()?))
    }
}

/// Bytes of a tensor: a range of a memory-mapped file, or of memory. Cloning and slicing share the
/// storage.
///
/// No alignment is promised: data in a safetensors file can start anywhere. Read numbers with `from_le_bytes`
/// or unaligned loads.
#[derive(Clone)]
pub struct Bytes {
    storage: Arc<Storage>,
    range: Range<usize>,
}

enum Storage {
    Mapped(Mmap, Arc<MappedFile>),
    Owned(Box<dyn AsRef<[u8]> + Send + Sync>),
}

impl Bytes {
    /// Takes ownership of bytes in memory, whatever holds them; it is dropped with the last of these bytes.
    pub fn from_owner(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let range = 0..owner.as_ref().len();
        Bytes { storage: Arc::new(Storage::Owned(Box::new(owner))), range }
    }

    /// Takes ownership of a vector.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self::from_owner(bytes)
    }

    /// Bytes that are part of the program.
    pub fn from_static(bytes: &'static [u8]) -> Self {
        Self::from_owner(bytes)
    }

    /// Maps a whole file read-only.
    pub(crate) fn map(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io(path))?;
        // SAFETY: the mapping is private to reading and lives in an Arc as long as any slice of it. What no
        // program can rule out is that another process changes the file meanwhile. Changed contents change
        // the numbers we read, nothing else: every bit pattern is a valid u8, and all offsets were parsed
        // into memory and checked against the mapped length beforehand. A file truncated while mapped ends
        // this process with SIGBUS at the next touch of a lost page (on Windows the system refuses to
        // truncate it). The alternative, reading whole models into memory, is what this engine exists to
        // avoid.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io(path))?;
        let metadata = file.metadata().map_err(Error::io(path))?;
        // Where the system has large pages for files (Linux, for pages that it reads from now on), weights come from memory
        // half as fast again. A refusal changes nothing.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let range = 0..map.len();
        let file = Arc::new(MappedFile::new(path, &metadata));
        Ok(Bytes { storage: Arc::new(Storage::Mapped(map, file)), range })
    }

    /// The file that these bytes are mapped from, and where they lie in it.
    pub fn place(&self) -> Option<(&Arc<MappedFile>, Range<u64>)> {
        match &*self.storage {
            Storage::Mapped(_, file) => Some((file, self.range.start as u64..self.range.end as u64)),
            Storage::Owned(_) => None,
        }
    }

    /// Says that a range will not be read again soon, so that its pages need not stay in memory. Reading it all the same
    /// fetches them from the file again.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Storage::Mapped(map, _) = &*self.storage {
            let start = self.range.start + range.start;
            // SAFETY: the advice makes the system forget pages. Of memory with contents of its own that would lose them;
            // this mapping is of a file and read-only, so a forgotten page is read from the file when it is touched next.
            // Slices into it stay valid: addresses do not change.
            // A refusal costs memory and nothing else.
            let _ =
                unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, range.len()) };
        }
    }

    /// A part of these bytes, sharing the storage.
    ///
    /// # Panics
    /// If the range reaches beyond the end, as slicing does.
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        assert!(
            range.start <= range.end && range.end <= self.range.len(),
            "range {range:?} of {} bytes",
            self.range.len()
        );
        let start = self.range.start;
        Bytes { storage: self.storage.clone(), range: start + range.start..start + range.end }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &*self.storage {
            Storage::Mapped(map, _) => map,
            Storage::Owned(owner) => (**owner).as_ref(),
        };
        &all[self.range.clone()]
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &*self.storage {
            Storage::Mapped(..) => "mapped",
            Storage::Owned(_) => "in memory",
        };
        write!(f, "Bytes({} {kind})", self.range.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_and_nest() {
        let bytes = Bytes::from_vec((0..10).collect());
        let part = bytes.slice(2..8).slice(1..3);
        assert_eq!(&*part, &[3, 4]);
        assert!(Arc::ptr_eq(&part.storage, &bytes.storage));
        assert_eq!(bytes.slice(10..10).len(), 0);
    }

    #[test]
    #[should_panic(expected = "range 1..4 of 3 bytes")]
    fn a_slice_stays_inside_its_parent() {
        Bytes::from_vec((0..10).collect()).slice(2..5).slice(1..4);
    }
}
