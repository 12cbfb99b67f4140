//! Grouped-query attention with normalised queries and keys, rotary positions, and an optional
//! output gate.

use backend::{CacheFloat, KvShape, Pairing, RopeSpec};

use crate::Result;
use crate::config::{Fields, divisible, problem, rope};
use crate::weights::{Branch, Role};
use crate::words::counted;

/// Shape of an attention layer.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct AttentionSpec {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Whether `q_proj` yields `[query | gate]` per head.
    pub gated: bool,
    /// Whether values are normalised, without a weight.
    pub v_norm: bool,
    /// Whether values are the keys before their norm and rotation.
    pub k_is_v: bool,
    /// Tokens a query sees; `None`: all.
    pub window: Option<usize>,
    /// The earlier layer whose keys and values it reads; `None`: it has its own.
    pub reads_cache_of: Option<usize>,
    /// Factor on `q . k`.
    pub scale: f32,
    pub rope: RopeSpec,
}

/// What a family takes where its config does not name a field.
pub(crate) struct AttentionDefaults {
    /// `None`: as many as query heads.
    pub kv_heads: Option<usize>,
    /// `None`: the hidden width divided among the heads.
    pub head_dim: Option<usize>,
    /// `None`: the config must name it.
    pub theta: Option<f64>,
    /// Share of a head's channels that is rotated.
    pub rotated_share: f64,
}

impl AttentionSpec {
    /// Plain attention: heads and rotary positions. `rope_theta` and the rotated share stand at the
    /// top or inside `rope_parameters`.
    pub fn read(fields: Fields<'_>, defaults: &AttentionDefaults) -> Result<Self> {
        let heads = fields.size("num_attention_heads")?;
        let kv_heads = fields.size_or("num_key_value_heads", defaults.kv_heads.unwrap_or(heads))?;
        divisible("num_attention_heads", heads, "num_key_value_heads", kv_heads)?;
        let head_dim = match (fields.get("head_dim"), defaults.head_dim) {
            (Some(_), _) => fields.size("head_dim")?,
            (None, Some(head_dim)) => head_dim,
            (None, None) => {
                divisible("hidden_size", fields.size("hidden_size")?, "num_attention_heads", heads)?
            }
        };
        let parameters = fields.object("rope_parameters");
        let either = |field| match parameters.map_or(Ok(None), |p| p.positive(field))? {
            None => fields.positive(field),
            found => Ok(found),
        };
        let theta = either("rope_theta")?.or(defaults.theta);
        let theta = theta.ok_or_else(|| problem("rope_theta", "is missing"))?;
        let share = either("partial_rotary_factor")?.unwrap_or(defaults.rotated_share);
        let rotated = (head_dim as f64 * share) as usize;
        if rotated > head_dim {
            return Err(problem("partial_rotary_factor", "is above 1"));
        }
        let scaling = fields.object("rope_scaling").or(parameters);
        let rope = rope(rotated, theta, Pairing::Halves, scaling)?;
        let scale = (head_dim as f32).powf(-0.5);
        Ok(Self {
            heads,
            kv_heads,
            head_dim,
            gated: false,
            v_norm: false,
            k_is_v: false,
            window: None,
            reads_cache_of: None,
            scale,
            rope,
        })
    }

    pub(super) fn weights(&self, mut at: Branch<'_>, hidden: usize) {
        let Self { heads, kv_heads, head_dim, gated, k_is_v, scale, .. } = *self;
        let own = self.reads_cache_of.is_none();
        at.matrix("q_proj", heads * head_dim * if gated { 2 } else { 1 }, hidden, Role::Projection);
        if own {
            at.matrix("k_proj", kv_heads * head_dim, hidden, Role::Projection);
            if !k_is_v {
                at.matrix("v_proj", kv_heads * head_dim, hidden, Role::Projection);
            }
        }
        at.matrix("o_proj", hidden, heads * head_dim, Role::Projection);
        at.norm("q_norm", head_dim);
        if own {
            // Where scores are not scaled, the norm of the keys does it.
            at.norm_about("k_norm", head_dim, (head_dim as f32).powf(-0.5) / scale);
        }
    }

    pub(super) fn cache(&self, float: CacheFloat) -> KvShape {
        let Self { kv_heads, head_dim, window, .. } = *self;
        KvShape { heads: kv_heads, key_dim: head_dim, value_dim: head_dim, float, window }
    }

    /// A line for people.
    pub(super) fn describe(&self, layers: usize) -> String {
        let Self { heads, kv_heads, head_dim, gated, window, rope, .. } = self;
        let gate = if *gated { ", output gate" } else { "" };
        let rotated = rope.inv_freq.iter().filter(|f| **f != 0.0).count() * 2;
        let window = window.map_or(String::new(), |w| format!(", window of {w}"));
        let layers = counted(layers, "layer");
        format!(
            "{layers}, {heads} query and {kv_heads} key-value heads of {head_dim}, {rotated} rotated{gate}{window}"
        )
    }
}
