//! Qwen3: grouped-query attention with query and key norms, dense or with experts.

use crate::Result;
use crate::config::Fields;
use crate::family::{Family, Quantise, no_offset};
use crate::spec::{AttentionDefaults, AttentionSpec, LayerSpec, Mixer, Norms, Spec};

use super::{SparseLayers, read_qwen_moe};

/// With experts.
pub const MOE: Family = Family {
    types: &["qwen3_moe"],
    prefix: "",
    read: |fields, _| read(fields, true),
    norm_offset: no_offset,
    router: Quantise::WIDE,
    keeps_type: &[],
    presets: &[],
};

/// Dense.
pub const DENSE: Family = Family { types: &["qwen3"], read: |fields, _| read(fields, false), ..MOE };

fn read(fields: Fields<'_>, experts: bool) -> Result<Spec> {
    // mlx-lm has no defaults for these families. Those of transformers are taken for what the shapes of
    // the weights confirm: the width of a head.
    let head_dim = (!experts).then_some(128);
    let defaults = AttentionDefaults { kv_heads: None, head_dim, theta: None, rotated_share: 1.0 };
    let attention = AttentionSpec::read(fields, &defaults)?;
    let (moe, sparse) = match experts {
        true => (read_qwen_moe(fields, false, None, false)?, SparseLayers::read(fields)?),
        false => (None, SparseLayers::ALL),
    };
    let layer = |i| {
        Ok(LayerSpec {
            norms: Norms::PRE,
            mixer: Mixer::Attention(attention.clone()),
            feed: sparse.feed(i, moe.as_ref(), fields)?,
            scalar: false,
        })
    };
    let layers = (0..fields.layers()?).map(layer).collect::<Result<_>>()?;
    Spec::read(fields, layers)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_fields_have_the_familys_defaults() {
        let config = json!({
            "vocab_size": 8, "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "rope_theta": 1e6,
            "intermediate_size": 64, "num_experts": 0,
        });
        for (experts, width) in [(false, 128), (true, 64)] {
            let spec = read(Fields(&config), experts).unwrap();
            let Mixer::Attention(read) = &spec.layers[0].mixer else { panic!("{:?}", spec.layers[0]) };
            assert_eq!((read.kv_heads, read.head_dim, read.rope.rotary_dim()), (16, width, width));
        }
    }
}
