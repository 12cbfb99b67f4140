//! Multi-head latent attention: keys and values of all heads are made from one small latent per token, and only that is
//! kept.

use backend::{
    Backend, Batch, CacheFloat, KvShape, LatentAttention as Spec, LatentWeights, MlaWeights, Norm, Pairing,
    RopeSpec,
};

use super::DecoderConfig;
use crate::Result;
use crate::config::{Fields, rope, yarn};
use crate::loader::Loader;
use crate::words::counted;

/// The eps of the norms inside the layer, whatever the config's own.
const EPS: f32 = 1e-6;

/// Shape of a latent attention layer.
#[derive(Clone, Debug)]
pub(crate) struct LatentConfig {
    pub hidden: usize,
    pub heads: usize,
    /// Width of the query's own latent; `None`: queries are projected directly.
    pub q_rank: Option<usize>,
    /// Width of the latent that is kept.
    pub rank: usize,
    /// Part of a query or key head without position.
    pub nope: usize,
    /// Part with position; its key is shared by all heads.
    pub pe: usize,
    pub value_dim: usize,
    pub rope: RopeSpec,
    pub scale: f32,
}

impl LatentConfig {
    pub fn read(fields: Fields<'_>, frame: &DecoderConfig) -> Result<Self> {
        let (nope, pe) = (fields.size_or("qk_nope_head_dim", 128)?, fields.size_or("qk_rope_head_dim", 64)?);
        let q_rank = fields.get("q_lora_rank").map(|_| fields.size("q_lora_rank")).transpose()?;
        let parameters = fields.object("rope_parameters");
        let scaling = fields.object("rope_scaling").or(parameters);
        let theta = match parameters.map_or(Ok(None), |p| p.positive("rope_theta"))? {
            Some(theta) => theta,
            None => fields.positive("rope_theta")?.unwrap_or(10_000.0),
        };
        // YaRN's attention temperature: the rotary embedding carries the ratio, the scale the rest.
        let temperature = match scaling.map(yarn).transpose()?.flatten() {
            Some(yarn) if yarn.mscale_all_dim != 0.0 => yarn.temperature(yarn.mscale_all_dim),
            _ => 1.0,
        };
        let scale = ((nope + pe) as f64).powf(-0.5) * temperature * temperature;
        Ok(Self {
            hidden: frame.hidden,
            heads: fields.size("num_attention_heads")?,
            q_rank: fields.or_default("q_lora_rank", q_rank, 1536),
            rank: fields.size_or("kv_lora_rank", 512)?,
            nope,
            pe,
            value_dim: fields.size_or("v_head_dim", 128)?,
            rope: rope(pe, theta, Pairing::Interleaved, scaling)?,
            scale: scale as f32,
        })
    }

    /// A line for people.
    pub fn describe(&self, layers: usize) -> (String, String) {
        let Self { heads, rank, nope, pe, value_dim, .. } = self;
        let text = format!(
            "{}, {} of {nope} + {pe} rotated, values of {value_dim}, latent of {rank}",
            counted(layers, "layer"),
            counted(*heads, "head")
        );
        ("latent attention".into(), text)
    }
}

/// What follows the first projection in the making of queries.
enum Query<B: Backend> {
    /// Nothing.
    Direct,
    /// The query had a latent of its own.
    Latent { norm: B::Tensor, up: B::Matrix },
}

/// One latent attention layer.
pub(crate) struct LatentAttention<B: Backend> {
    config: LatentConfig,
    /// To queries or their latents, and to `[latent | k_pe]`.
    projections: [B::Matrix; 2],
    query: Query<B>,
    core: LatentWeights<B>,
    o_proj: B::Matrix,
}

/// The matrices between latents and heads: of their own, or rows of the older `kv_b_proj`, which holds for every head
/// those that make its key and then those that make its value.
fn load_head_weights<B: Backend>(
    loader: &Loader<'_, B>,
    config: &LatentConfig,
) -> Result<MlaWeights<B::HeadMatrices>> {
    let LatentConfig { heads, rank, nope, value_dim, .. } = *config;
    if !loader.contains("kv_b_proj.weight") {
        return Ok(MlaWeights {
            embed_q: loader.head_matrices("embed_q", heads, rank, nope)?,
            unembed_out: loader.head_matrices("unembed_out", heads, value_dim, rank)?,
        });
    }
    let kv_b = loader.weight("kv_b_proj", heads * (nope + value_dim), rank)?;
    Ok(MlaWeights {
        embed_q: loader.heads("embed_q", kv_b.head_rows(heads, 0..nope), true)?,
        unembed_out: loader.heads("unembed_out", kv_b.head_rows(heads, nope..nope + value_dim), false)?,
    })
}

impl<B: Backend> LatentAttention<B> {
    pub fn load(loader: &Loader<'_, B>, config: &LatentConfig) -> Result<Self> {
        let LatentConfig { hidden, heads, q_rank, rank, nope, pe, value_dim, .. } = *config;
        let first = match q_rank {
            None => ("q_proj", heads * (nope + pe)),
            Some(q_rank) => ("q_a_proj", q_rank),
        };
        Ok(Self {
            projections: loader.matrices([first, ("kv_a_proj_with_mqa", rank + pe)], hidden)?,
            query: match q_rank {
                None => Query::Direct,
                Some(q_rank) => Query::Latent {
                    norm: loader.norm("q_a_layernorm", q_rank)?,
                    up: loader.matrix("q_b_proj", heads * (nope + pe), q_rank)?,
                },
            },
            core: LatentWeights {
                norm: loader.norm("kv_a_layernorm", rank)?,
                eps: EPS,
                rope: loader.backend.rope_table(&config.rope)?,
                nope,
                mla: load_head_weights(loader, config)?,
            },
            o_proj: loader.matrix("o_proj", hidden, heads * value_dim)?,
            config: config.clone(),
        })
    }

    pub fn kv_shape(&self, float: CacheFloat) -> KvShape {
        KvShape { heads: 1, key_dim: self.config.rank + self.config.pe, value_dim: 0, float, window: None }
    }

    /// `h [n, d]` to `h + f(norm(h))`.
    pub fn forward(
        &self,
        b: &B,
        h: B::Tensor,
        norm: Norm<'_, B::Tensor>,
        batch: &Batch<B>,
        mut caches: Vec<&mut B::KvCache>,
    ) -> Result<B::Tensor> {
        let LatentConfig { heads, scale, .. } = self.config;
        let [q, kv] = b.norm_matmuls(&h, norm, self.projections.each_ref())?;
        let q = match &self.query {
            Query::Direct => q,
            Query::Latent { norm, up } => {
                let [q] = b.norm_matmuls(&q, Norm { w: norm, eps: EPS }, [up])?;
                q
            }
        };
        let y = b.latent_attention(&q, &kv, &self.core, batch, &mut caches, &Spec { heads, scale })?;
        Ok(b.matmul_add(&y, &self.o_proj, h)?)
    }
}
