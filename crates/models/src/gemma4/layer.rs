//! One Gemma 4 layer.

use backend::{
    Activation, Attention as AttentionCall, AttentionWeights, Backend, Batch, EndNorms, Factor,
    KeyValueNorms, LayerEnd, LayerStart, Mask, MoeWeights, Norm,
};

use crate::Result;
use crate::config::problem;
use crate::layers::{Mlp, load_moe};
use crate::loader::Loader;
use crate::spec::{AttentionSpec, Beside, FeedForward, LayerSpec, Mixer, MoeSpec, Norms, Spec};

/// From a layer's input to its queries and, where it has its own, keys and values.
enum Projections<B: Backend> {
    /// Queries; keys and values are an earlier layer's.
    Q(B::Matrix),
    /// Queries and keys, which are values too.
    Qk([B::Matrix; 2]),
    Qkv([B::Matrix; 3]),
}

/// What goes from one layer to the next.
pub(super) enum Hidden<'a, B: Backend> {
    Whole(B::Tensor),
    /// What is still to be put together.
    End(LayerEnd<'a, B::Tensor>),
}

impl<B: Backend> Hidden<'_, B> {
    pub fn whole(self, b: &B) -> Result<B::Tensor> {
        Ok(match self {
            Self::Whole(h) => h,
            Self::End(LayerEnd { r, halves, norms, eps, factor }) => {
                let factor = Factor::Scalar(factor);
                b.combine_norm_add(&r, halves.each_ref(), norms.each.each_ref(), eps, factor)?
            }
        })
    }

    /// As a whole, which `see` is shown as soon as it is there, and `Wi (norm(h))`.
    fn norm_matmuls<const N: usize>(
        self,
        b: &B,
        norm: Norm<'_, B::Tensor>,
        weights: [&B::Matrix; N],
        see: impl FnOnce(&B::Tensor) -> Result<()>,
    ) -> Result<LayerStart<B::Tensor, N>> {
        if let Self::End(end) = &self
            && let Some(start) = b.end_norm_matmuls(end, weights)?
        {
            see(&start.h)?;
            return Ok(start);
        }
        let h = self.whole(b)?;
        see(&h)?;
        let products = b.norm_matmuls(&h, norm, weights)?;
        Ok(LayerStart { h, products })
    }
}

/// Attention with normalised queries, keys and values, over its own cache or an earlier layer's.
struct Attention<B: Backend> {
    config: AttentionSpec,
    projections: Projections<B>,
    core: AttentionWeights<B>,
    o_proj: B::Matrix,
}

impl<B: Backend> Attention<B> {
    fn load(loader: &Loader<'_, B>, spec: &AttentionSpec, eps: f32) -> Result<Self> {
        let own = spec.reads_cache_of.is_none();
        let projections = match (own, spec.k_is_v) {
            (false, _) => Projections::Q(loader.matrix("q_proj")?),
            (true, true) => Projections::Qk(loader.matrices(["q_proj", "k_proj"])?),
            (true, false) => Projections::Qkv(loader.matrices(["q_proj", "k_proj", "v_proj"])?),
        };
        let key_value = || {
            let (heads, norm_values) = (spec.kv_heads, spec.v_norm);
            Ok::<_, crate::Error>(KeyValueNorms { heads, k_norm: loader.vector("k_norm")?, norm_values })
        };
        Ok(Self {
            projections,
            core: AttentionWeights {
                q_norm: loader.vector("q_norm")?,
                key_value: own.then(key_value).transpose()?,
                rope: loader.backend.rope_table(&spec.rope)?,
                eps,
                gated: spec.gated,
            },
            o_proj: loader.matrix("o_proj")?,
            config: spec.clone(),
        })
    }

    /// `h`, which `see` is shown as soon as it is there, and `f(norm(h))`.
    fn forward(
        &self,
        b: &B,
        hidden: Hidden<'_, B>,
        norm: Norm<'_, B::Tensor>,
        batch: &Batch<B>,
        mut caches: Vec<&mut B::KvCache>,
        see: impl FnOnce(&B::Tensor) -> Result<()>,
    ) -> Result<[B::Tensor; 2]> {
        let AttentionSpec { heads, window, .. } = self.config;
        let (h, q, kv) = match &self.projections {
            Projections::Q(q) => {
                let LayerStart { h, products: [q] } = hidden.norm_matmuls(b, norm, [q], see)?;
                (h, q, None)
            }
            Projections::Qk(matrices) => {
                let LayerStart { h, products: [q, k] } =
                    hidden.norm_matmuls(b, norm, matrices.each_ref(), see)?;
                (h, q, Some([k.clone(), k]))
            }
            Projections::Qkv(matrices) => {
                let LayerStart { h, products: [q, k, v] } =
                    hidden.norm_matmuls(b, norm, matrices.each_ref(), see)?;
                (h, q, Some([k, v]))
            }
        };
        let mask = window.map_or(Mask::Causal, Mask::Window);
        let spec = AttentionCall { heads, scale: self.config.scale, mask, soft_cap: None };
        let out = (&self.o_proj, None);
        Ok([h, b.self_attention_out((q, kv), &self.core, batch, &mut caches, &spec, out)?])
    }
}

/// The routed half of a layer.
struct Moe<B: Backend> {
    weights: MoeWeights<B>,
    pre_norm: B::Tensor,
    end: EndNorms<B::Tensor>,
}

impl<B: Backend> Moe<B> {
    /// `post_norm` comes behind the sum with the dense unit; `next` is the first norm of the layer behind this one.
    fn load(
        loader: &Loader<'_, B>,
        spec: &MoeSpec,
        beside: &Beside,
        post_norm: &str,
        next: Option<&[f32]>,
    ) -> Result<Self> {
        let mut norms = Vec::new();
        for name in [beside.after[0], beside.after[1], post_norm] {
            norms.extend(loader.values(name)?);
        }
        let hidden = norms.len() / 3;
        let upload = |i: usize| loader.backend.upload(1, hidden, &norms[i * hidden..][..hidden]);
        let each = [upload(0)?, upload(1)?, upload(2)?];
        let with_next = |next: &[f32]| {
            norms.extend_from_slice(next);
            loader.backend.upload(1, 4 * hidden, &norms)
        };
        let with_next = next.map(with_next).transpose()?;
        Ok(Self {
            weights: load_moe(loader, spec)?,
            pre_norm: loader.vector(beside.before)?,
            end: EndNorms { each, with_next },
        })
    }
}

/// What comes behind a layer's dense unit.
enum Behind<B: Backend> {
    /// A norm.
    Norm(B::Tensor),
    /// Norms of it and of experts beside it.
    Experts(Moe<B>),
}

/// What a layer does with its own input of every token.
struct LayerInput<B: Backend> {
    gate: B::Matrix,
    projection: B::Matrix,
    norm: B::Tensor,
}

/// One layer.
pub(super) struct Layer<B: Backend> {
    eps: f32,
    input_norm: B::Tensor,
    attention: Attention<B>,
    post_attention_norm: B::Tensor,
    pre_norm: B::Tensor,
    mlp: Mlp<B>,
    behind: Behind<B>,
    layer_input: Option<LayerInput<B>>,
    scalar: f32,
}

impl<B: Backend> Layer<B> {
    /// With its own first norm, and that of the next.
    pub fn load(
        loader: &Loader<'_, B>,
        spec: &Spec,
        layer: &LayerSpec,
        (own_norm, next_norm): (&[f32], Option<&[f32]>),
    ) -> Result<Self> {
        let (eps, Norms { after_mixer, before_feed, after_feed, .. }) = (spec.eps, layer.norms);
        let (Mixer::Attention(attention), Some(after_mixer), Some(after_feed)) =
            (&layer.mixer, after_mixer, after_feed)
        else {
            return Err(problem("layer_types", "mixes kinds of layers that no frame takes"));
        };
        let (mlp, behind) = match &layer.feed {
            FeedForward::Mlp(mlp) => (*mlp, Behind::Norm(loader.vector(after_feed)?)),
            FeedForward::Moe(moe) => {
                let beside = moe.beside.ok_or_else(|| problem("intermediate_size", "is missing"))?;
                let moe = Moe::load(loader, moe, &beside, after_feed, next_norm)?;
                (beside.mlp, Behind::Experts(moe))
            }
        };
        let layer_input = || {
            Ok::<_, crate::Error>(LayerInput {
                gate: loader.matrix("per_layer_input_gate")?,
                projection: loader.matrix("per_layer_projection")?,
                norm: loader.vector("post_per_layer_input_norm")?,
            })
        };
        Ok(Self {
            eps,
            input_norm: loader.backend.upload(1, own_norm.len(), own_norm)?,
            attention: Attention::load(&loader.at("self_attn"), attention, eps)?,
            post_attention_norm: loader.vector(after_mixer)?,
            pre_norm: loader.vector(before_feed)?,
            mlp: Mlp::load(&loader.at("mlp"), &mlp)?,
            behind,
            layer_input: spec.layer_inputs.map(|_| layer_input()).transpose()?,
            scalar: if layer.scalar { loader.values("layer_scalar")?[0] } else { 1.0 },
        })
    }

    /// `h [n, d]` to the next layer's; `input [n, width]` is this layer's own input, for models that have such.
    pub fn forward<'a>(
        &'a self,
        b: &B,
        hidden: Hidden<'a, B>,
        input: Option<B::Tensor>,
        batch: &Batch<B>,
        caches: Vec<&mut B::KvCache>,
    ) -> Result<Hidden<'a, B>> {
        let eps = self.eps;
        let see = |h: &B::Tensor| match &self.behind {
            Behind::Experts(moe) => Ok(b.expect_moe(h, Norm { w: &moe.pre_norm, eps }, &moe.weights)?),
            Behind::Norm(_) => Ok(()),
        };
        let norm = Norm { w: &self.input_norm, eps };
        let [h, x] = self.attention.forward(b, hidden, norm, batch, caches, see)?;
        let own_input = self.layer_input.as_ref().zip(input);
        let factor = if own_input.is_some() { 1.0 } else { self.scalar };
        let (pre, x_post) = (Norm { w: &self.pre_norm, eps }, [&x, &self.post_attention_norm]);

        let hidden = match &self.behind {
            Behind::Experts(Moe { weights, pre_norm, end: norms }) => {
                let moe = (Norm { w: pre_norm, eps }, weights);
                let [r, dense, routed] = b.norm_add_unit_moe(&h, x_post, (pre, &self.mlp.0), moe)?;
                Hidden::End(LayerEnd { r, halves: [dense, routed], norms, eps, factor })
            }
            Behind::Norm(post_norm) => {
                let (h, dense) = self.mlp.forward_after(b, &h, x_post, pre)?;
                Hidden::Whole(b.norm_add(&h, &dense, post_norm, eps, Factor::Scalar(factor))?)
            }
        };
        let Some((own, input)) = own_input else { return Ok(hidden) };
        let h = hidden.whole(b)?;
        let x = b.glu(b.matmul(&h, &own.gate)?, &input, Activation::GeluTanh)?;
        let x = b.matmul(&x, &own.projection)?;
        Ok(Hidden::Whole(b.norm_add(&h, &x, &own.norm, eps, Factor::Scalar(self.scalar))?))
    }
}
