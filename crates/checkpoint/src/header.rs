//! The header of one safetensors file: parsed, and checked against the file.

use std::{fmt, path::Path};

use safetensors::{
    Dtype, SafeTensorError,
    tensor::{Metadata, TensorInfo},
};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};

use crate::{Bytes, Error, Result};

/// The same limit as the safetensors crate: a length above it is a damaged file, not a large model.
pub(crate) const MAX_HEADER: u64 = 100_000_000;
/// Bytes of the header's length at the start of the file.
const PREFIX: usize = 8;

/// One tensor of a file.
pub(crate) struct Entry {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Bytes,
}

/// Bytes of a tensor; `None` when it is not a whole number of bytes, or more than memory can address.
pub(crate) fn tensor_bytes(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let elements = shape.iter().try_fold(1usize, |n, &axis| n.checked_mul(axis))?;
    let bits = elements.checked_mul(dtype.bitsize())?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// The tensors of a mapped file, each inside it, together covering its data without overlap.
pub(crate) fn parse(path: &Path, file: &Bytes) -> Result<Vec<Entry>> {
    let bad = |problem: String| Error::BadHeader { path: path.to_owned(), problem };

    let Some((prefix, rest)) = file.split_first_chunk::<PREFIX>() else {
        return Err(bad(format!("not a safetensors file: only {} bytes", file.len())));
    };
    let length = u64::from_le_bytes(*prefix);
    let text = usize::try_from(length).ok().and_then(|length| rest.get(..length)).ok_or_else(|| {
        bad(format!(
            "the header should be {length} bytes, but the file has only {} after its length: not a \
             safetensors file, or an incomplete download",
            rest.len()
        ))
    })?;
    if length > MAX_HEADER {
        return Err(bad(format!("the header is {length} bytes, more than the format allows ({MAX_HEADER})")));
    }
    // A copy: in the mapping, text could stop being UTF-8 after it was checked.
    let text = String::from_utf8(text.to_vec())
        .map_err(|error| bad(format!("the header is not UTF-8: {}", error.utf8_error())))?;
    let Header(mut tensors) =
        serde_json::from_str(&text).map_err(|error| bad(format!("the header is not valid: {error}")))?;

    // The crate's parser keeps the last of two equal names, and its size error names no tensor: hence both
    // checks here. Order, overlap and gaps are left to it.
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    if let Some(twice) = tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(bad(format!("tensor `{}` is in the header twice", twice[0].0)));
    }
    for (name, info) in &tensors {
        let (start, end) = info.data_offsets;
        if end < start || tensor_bytes(info.dtype, &info.shape) != Some(end - start) {
            let TensorInfo { dtype, shape, .. } = info;
            return Err(bad(format!(
                "tensor `{name}` of type {dtype} and shape {shape:?} cannot be bytes {start}..{end}"
            )));
        }
    }
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    let metadata = Metadata::new(None, tensors).map_err(|error| match error {
        SafeTensorError::InvalidOffset(name) => bad(format!(
            "the data of tensor `{name}` does not start where the data before it ends: overlap or gap"
        )),
        other => bad(format!("the header is not valid: {other}")),
    })?;

    let data = file.slice(PREFIX + text.len()..file.len());
    let needed = metadata.data_len();
    if needed > data.len() {
        return Err(bad(format!(
            "incomplete: the tensors need {needed} bytes, the file has {}; fetch it again",
            data.len()
        )));
    }
    if needed < data.len() {
        return Err(bad(format!("{} bytes follow the last tensor", data.len() - needed)));
    }
    Ok(metadata
        .tensors()
        .into_iter()
        .map(|(name, info)| Entry {
            name,
            dtype: info.dtype,
            shape: info.shape.clone(),
            bytes: data.slice(info.data_offsets.0..info.data_offsets.1),
        })
        .collect())
}

/// The header's tensors in file order, repeated names included.
struct Header(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Tensors;

        impl<'de> Visitor<'de> for Tensors {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Header, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let info = map
                        .next_value()
                        .map_err(|error| A::Error::custom(format_args!("tensor `{name}`: {error}")))?;
                    tensors.push((name, info));
                }
                Ok(Header(tensors))
            }
        }

        deserializer.deserialize_map(Tensors)
    }
}
