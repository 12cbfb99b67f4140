//! Reading files around the system's cache.

use std::fs::File;
use std::io;
use std::sync::Arc;

use checkpoint::MappedFile;

/// Something that bytes can be read from, by several threads at once.
pub trait Source: Send + Sync {
    /// Reads from `start` on, at least `needed` bytes, and more as far as `out` reaches. `start`, the place of `out` in memory and
    /// its length are multiples of a page.
    fn read(&self, start: u64, out: &mut [u8], needed: usize) -> io::Result<()>;
}

/// Where sources come from.
pub trait Disk: Send + Sync {
    /// Opens a file that has been mapped.
    fn open(&self, file: &Arc<MappedFile>) -> io::Result<Arc<dyn Source>>;
}

/// The files themselves.
pub(crate) struct Files;

impl Disk for Files {
    fn open(&self, mapped: &Arc<MappedFile>) -> io::Result<Arc<dyn Source>> {
        // Not every file system can do without its cache.
        let file = open_around_cache(mapped).or_else(|_| File::open(&mapped.path))?;
        let opened = OpenFile { file, mapped: mapped.clone() };
        opened.check()?;
        Ok(Arc::new(opened))
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn open_around_cache(file: &MappedFile) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&file.path)
}

#[cfg(target_os = "macos")]
fn open_around_cache(file: &MappedFile) -> io::Result<File> {
    use std::os::fd::AsRawFd;
    let file = File::open(&file.path)?;
    // SAFETY: the descriptor is open, and the command takes a number. A refusal changes nothing.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_NOCACHE, 1) };
    Ok(file)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
fn open_around_cache(file: &MappedFile) -> io::Result<File> {
    File::open(&file.path)
}

struct OpenFile {
    file: File,
    mapped: Arc<MappedFile>,
}

impl OpenFile {
    /// That what has been read so far is what was in the file when it was mapped.
    fn check(&self) -> io::Result<()> {
        match self.mapped.is_unchanged(&self.file)? {
            true => Ok(()),
            false => Err(io::Error::other("the file has been changed since the model was opened")),
        }
    }

    #[cfg(unix)]
    fn read_at(&self, out: &mut [u8], start: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(&self.file, out, start)
    }

    #[cfg(windows)]
    fn read_at(&self, out: &mut [u8], start: u64) -> io::Result<usize> {
        std::os::windows::fs::FileExt::seek_read(&self.file, out, start)
    }
}

impl Source for OpenFile {
    fn read(&self, start: u64, out: &mut [u8], needed: usize) -> io::Result<()> {
        let mut done = 0;
        while done < needed {
            match self.read_at(&mut out[done..], start + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // A file that was cut in the middle of a page reads as a wrong argument.
                    self.check()?;
                    return Err(error);
                }
            }
        }
        self.check()?;
        if done < needed {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}
