//! A sequence in a file: its tokens, its caches and recurrent states.
//!
//! The file is an ordinary safetensors file. `header` holds a line of JSON: what wrote it, for which model, how many
//! tokens. Each attention layer has `layers.N.keys` and `layers.N.values` `[tokens, heads, width]`, or, of a cache of codes, `[tokens,
//! heads, bytes of a row]`, each recurrent one `layers.N.window` and `layers.N.state`.

use std::collections::BTreeMap;
use std::path::Path;

use backend::pool::{LayerImage, LayerShape, StateImage};
use backend::{Backend, CacheFloat, GdnShape, KvImage, KvShape, RecurrentImage};
use checkpoint::{Dtype, Tensor, TensorSpec, read_file, write_file};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::engine::Engine;
use crate::sequence::Sequence;

/// Bumped when a reader of the old form would misread the new one.
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Header {
    pleiad_state: u32,
    /// What the model is: a state of another one must not be taken for this one's.
    model: String,
    tokens: usize,
    /// First position each layer still holds, for sliding windows.
    first: Vec<usize>,
}

fn cache_dtype(float: CacheFloat) -> Dtype {
    match float {
        CacheFloat::F32 => Dtype::F32,
        CacheFloat::F16 => Dtype::F16,
        // Rows of codes and scales.
        CacheFloat::Q8 => Dtype::U8,
    }
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Tensors to write, in order.
#[derive(Default)]
struct Parts(Vec<(TensorSpec, Vec<u8>)>);

impl Parts {
    fn push(&mut self, name: String, dtype: Dtype, shape: Vec<usize>, bytes: Vec<u8>) {
        self.0.push((TensorSpec { name, dtype, shape }, bytes));
    }

    fn push_kv(&mut self, layer: usize, shape: &KvShape, image: &KvImage) {
        let kept = image.len - image.first;
        let dtype = cache_dtype(shape.float);
        let parts = [("keys", shape.key_dim, &image.keys), ("values", shape.value_dim, &image.values)];
        for (part, width, bytes) in parts {
            let width = if dtype == Dtype::U8 { shape.float.row_bytes(width) } else { width };
            self.push(format!("layers.{layer}.{part}"), dtype, vec![kept, shape.heads, width], bytes.clone());
        }
    }

    fn push_recurrent(&mut self, layer: usize, shape: &GdnShape, image: &RecurrentImage) {
        let window = vec![shape.kernel - 1, shape.channels()];
        self.push(format!("layers.{layer}.window"), Dtype::F32, window, floats(&image.window));
        let state = vec![shape.value_heads, shape.value_dim, shape.key_dim];
        self.push(format!("layers.{layer}.state"), Dtype::F32, state, floats(&image.state));
    }
}

/// The tensors of a file that should hold a state.
struct File<'a> {
    path: &'a Path,
    tensors: BTreeMap<String, Tensor>,
}

impl File<'_> {
    fn unfit(&self, reason: impl Into<String>) -> Error {
        Error::StateFile { path: self.path.into(), reason: reason.into() }
    }

    fn tensor(&self, name: &str, dtype: Dtype) -> Result<&Tensor, Error> {
        let tensor =
            self.tensors.get(name).ok_or_else(|| self.unfit(format!("it has no tensor `{name}`")))?;
        if tensor.dtype != dtype {
            return Err(self.unfit(format!("`{name}` is {}, expected {dtype}", tensor.dtype)));
        }
        Ok(tensor)
    }

    fn words<T>(&self, name: &str, dtype: Dtype, word: impl Fn([u8; 4]) -> T) -> Result<Vec<T>, Error> {
        Ok(self.tensor(name, dtype)?.bytes.as_chunks().0.iter().map(|w| word(*w)).collect())
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, Error> {
        self.words(name, Dtype::F32, f32::from_le_bytes)
    }

    fn layer(&self, i: usize, shape: &LayerShape, header: &Header) -> Result<LayerImage, Error> {
        Ok(match shape {
            LayerShape::Kv(kv) => {
                let part = |part| {
                    Ok::<_, Error>(
                        self.tensor(&format!("layers.{i}.{part}"), cache_dtype(kv.float))?.bytes.to_vec(),
                    )
                };
                let first = *header.first.get(i).ok_or_else(|| self.unfit("its header lacks layers"))?;
                LayerImage::Kv(KvImage {
                    first,
                    len: header.tokens,
                    keys: part("keys")?,
                    values: part("values")?,
                })
            }
            LayerShape::Recurrent(_) => LayerImage::Recurrent(RecurrentImage {
                window: self.floats(&format!("layers.{i}.window"))?,
                state: self.floats(&format!("layers.{i}.state"))?,
            }),
        })
    }
}

impl<B: Backend> Engine<B> {
    /// Writes a sequence to a file; a file that was there is replaced whole.
    pub(crate) fn save(&self, sequence: &Sequence, path: &Path) -> Result<(), Error> {
        let image = self.pools().sequences_ref().save(self.model().backend(), sequence.slot)?;
        let first = image.layers.iter().map(|layer| match layer {
            LayerImage::Kv(kv) => kv.first,
            LayerImage::Recurrent(_) => 0,
        });
        let header = Header {
            pleiad_state: FORMAT,
            model: self.model().identity().into(),
            tokens: image.len,
            first: first.collect(),
        };
        let header = serde_json::to_vec(&header)
            .map_err(|e| Error::StateFile { path: path.into(), reason: e.to_string() })?;
        let mut parts = Parts::default();
        parts.push("header".into(), Dtype::U8, vec![header.len()], header);
        let ids = sequence.tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        parts.push("tokens".into(), Dtype::U32, vec![sequence.tokens.len()], ids);
        for (i, (shape, layer)) in
            self.model().layer_shapes(self.cache()).iter().zip(&image.layers).enumerate()
        {
            match (shape, layer) {
                (LayerShape::Kv(shape), LayerImage::Kv(image)) => parts.push_kv(i, shape, image),
                (LayerShape::Recurrent(shape), LayerImage::Recurrent(image)) => {
                    parts.push_recurrent(i, shape, image)
                }
                _ => unreachable!("a state has the layers of its model"),
            }
        }
        let parts: Vec<_> = parts.0.iter().map(|(spec, bytes)| (spec.clone(), bytes.as_slice())).collect();
        write_file(path, &parts).map_err(models::Error::from)?;
        Ok(())
    }

    /// The header and the tokens of a file, if they are of this model.
    fn opened<'a>(&self, path: &'a Path) -> Result<(File<'a>, Header, Vec<u32>), Error> {
        let tensors = read_file(path).map_err(models::Error::from)?;
        let file = File { path, tensors };
        let header: Header = serde_json::from_slice(&file.tensor("header", Dtype::U8)?.bytes)
            .map_err(|e| file.unfit(format!("its header is not valid: {e}")))?;
        if header.pleiad_state != FORMAT {
            return Err(
                file.unfit(format!("it has format {}, this version reads {FORMAT}", header.pleiad_state))
            );
        }
        if header.model != self.model().identity() {
            return Err(file.unfit("it was saved with another model"));
        }
        let tokens = file.words("tokens", Dtype::U32, u32::from_le_bytes)?;
        if tokens.len() != header.tokens {
            return Err(file.unfit("its header and its tokens disagree"));
        }
        if tokens.len() > self.context() {
            return Err(Error::PromptTooLong { tokens: tokens.len(), context: self.context() });
        }
        Ok((file, header, tokens))
    }

    /// The tokens of a saved sequence, without reading the rest.
    pub(crate) fn saved_tokens(&self, path: &Path) -> Result<Vec<u32>, Error> {
        Ok(self.opened(path)?.2)
    }

    /// Reads a sequence that was saved with the same model and the same kind of cache; `None` where memory is missing.
    pub(crate) fn load(&mut self, path: &Path) -> Result<Option<Sequence>, Error> {
        let (file, header, tokens) = self.opened(path)?;
        let vocabulary = self.model().summary().vocabulary;
        if tokens.iter().any(|id| *id as usize >= vocabulary) {
            return Err(file.unfit("its tokens are of another vocabulary"));
        }
        let shapes = self.model().layer_shapes(self.cache());
        let layers = shapes.iter().enumerate().map(|(i, shape)| file.layer(i, shape, &header));
        let image = StateImage { len: header.tokens, layers: layers.collect::<Result<_, Error>>()? };
        let (b, pools) = self.parts();
        Ok(pools.sequences().load(b, &image)?.map(|slot| Sequence::at(slot, tokens)))
    }
}
