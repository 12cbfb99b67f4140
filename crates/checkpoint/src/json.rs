//! Reading the small JSON files of a folder.

use std::{fs, io::Read, path::Path};

use crate::{Error, Result};

/// The largest index in the wild is some 10 MB (every expert of a 671B model a tensor of its own).
const LIMIT: u64 = 256 << 20;

/// A text file, or what is wrong with it. The outer error is the system's.
pub(crate) fn read_text(path: &Path) -> Result<std::result::Result<String, String>> {
    let file = fs::File::open(path).map_err(Error::io(path))?;
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes).map_err(Error::io(path))?;
    if bytes.len() as u64 > LIMIT {
        return Ok(Err(format!("larger than {} MiB", LIMIT >> 20)));
    }
    Ok(String::from_utf8(bytes).map_err(|error| error.utf8_error().to_string()))
}
