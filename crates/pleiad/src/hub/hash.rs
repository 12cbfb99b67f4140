//! What a file of the hub must be, and telling whether it is.

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::repo::is_hex;

/// What names the contents of a file: it is also the name of the file in the cache and its ETag on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256 of the bytes: large files.
    Sha256(String),
    /// SHA-1 of the bytes with git's header: files that are in git itself.
    Git(String),
}

impl Hash {
    /// By its length; `None` for anything else.
    pub fn parse(text: &str) -> Option<Hash> {
        match text.len() {
            64 if is_hex(text) => Some(Hash::Sha256(text.to_owned())),
            40 if is_hex(text) => Some(Hash::Git(text.to_owned())),
            _ => None,
        }
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        match self {
            Hash::Sha256(text) | Hash::Git(text) => text,
        }
    }

    /// What computes such a hash of a file of `size` bytes.
    pub fn hasher(&self, size: u64) -> Hasher {
        match self {
            Hash::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Hash::Git(_) => Hasher::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }
}

/// A file on the hub.
#[derive(Clone, Debug)]
pub struct RemoteFile {
    /// Its path in the repository.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// What they hash to.
    pub hash: Hash,
}

/// A hash on its way.
pub enum Hasher {
    /// See [`Hash::Sha256`].
    Sha256(Sha256),
    /// See [`Hash::Git`].
    Git(Sha1),
}

impl Hasher {
    /// More bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Git(hasher) => hasher.update(bytes),
        }
    }

    /// The hash of all bytes so far.
    pub fn finish(self) -> Hash {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Hasher::Sha256(hasher) => Hash::Sha256(hex(&hasher.finalize())),
            Hasher::Git(hasher) => Hash::Git(hex(&hasher.finalize())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_git_and_sha256sum_say() {
        for hash in [
            // printf 'hello\n' | git hash-object --stdin; printf 'hello\n' | sha256sum
            "ce013625030ba8dba906f756967f9e9ca394464a",
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
        ] {
            let hash = Hash::parse(hash).unwrap();
            let mut hasher = hash.hasher(6);
            hasher.update(b"hel");
            hasher.update(b"lo\n");
            assert_eq!(hasher.finish(), hash);
        }
        for bad in ["", "../../x", &"g".repeat(40), &"A".repeat(40), &"a".repeat(41)] {
            assert_eq!(Hash::parse(bad), None, "{bad}");
        }
    }
}
