//! A model for people.

use super::{FeedForward, LayerSpec, Mixer, Spec};
use crate::words::counted;

/// Counts equal parts of layers, in the order in which they first occur.
fn count<T: PartialEq>(parts: impl Iterator<Item = T>) -> Vec<(T, usize)> {
    let mut kinds: Vec<(T, usize)> = Vec::new();
    for part in parts {
        match kinds.iter_mut().find(|(kind, _)| *kind == part) {
            Some((_, count)) => *count += 1,
            None => kinds.push((part, 1)),
        }
    }
    kinds
}

/// The mixer, whether or not it has a cache of its own.
fn mixer(layer: &LayerSpec) -> Mixer {
    match &layer.mixer {
        Mixer::Attention(spec) => {
            Mixer::Attention(super::AttentionSpec { reads_cache_of: None, ..spec.clone() })
        }
        other => other.clone(),
    }
}

impl Spec {
    /// One line per kind of layer and part: its name, and what there is to say.
    pub fn describe(&self) -> Vec<(String, String)> {
        let mixers = count(self.layers.iter().map(mixer));
        let windows = mixers.iter().any(|(m, _)| matches!(m, Mixer::Attention(a) if a.window.is_some()));
        let mut lines: Vec<(&str, String)> = Vec::new();
        for (mixer, layers) in &mixers {
            lines.push(match mixer {
                Mixer::Attention(spec) if spec.window.is_some() => {
                    ("local attention", spec.describe(*layers))
                }
                Mixer::Attention(spec) if windows => ("global attention", spec.describe(*layers)),
                Mixer::Attention(spec) => ("attention", spec.describe(*layers)),
                Mixer::Latent(spec) => ("latent attention", spec.describe(*layers)),
                Mixer::GatedDelta(spec) => ("Gated DeltaNet", spec.describe(*layers)),
            });
        }
        match self.layers.iter().filter(|layer| layer.mixer.reads().is_some()).count() {
            0 => {}
            1 => lines.push(("shared keys", "1 layer reads an earlier layer's keys and values".into())),
            n => lines.push(("shared keys", format!("{n} layers read earlier layers' keys and values"))),
        }
        let experts = self.layers.iter().filter_map(|layer| match &layer.feed {
            FeedForward::Moe(moe) => Some(moe),
            FeedForward::Mlp(_) => None,
        });
        for (moe, layers) in count(experts) {
            lines.push(("experts", moe.describe(layers)));
        }
        if let Some(inputs) = self.layer_inputs {
            let width = counted(inputs.width, "value");
            lines.push(("layer inputs", format!("{width} of every token for each layer")));
        }
        lines.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
    }
}
