//! One Gemma 4 layer.

use backend::{
    Activation, Attention as Spec, AttentionWeights, Backend, Batch, EndNorms, Factor, KeyValueNorms,
    LayerEnd, LayerStart, Mask, MoeWeights, Norm, Routing,
};

use super::config::{AttentionConfig, Config, MoeConfig};
use crate::Result;
use crate::layers::Mlp;
use crate::loader::{ExpertNames, ExpertShape, Loader};

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
    config: AttentionConfig,
    projections: Projections<B>,
    core: AttentionWeights<B>,
    o_proj: B::Matrix,
}

impl<B: Backend> Attention<B> {
    fn load(
        loader: &Loader<'_, B>,
        config: &AttentionConfig,
        hidden: usize,
        eps: f32,
        own: bool,
    ) -> Result<Self> {
        let AttentionConfig { heads, kv_heads, head_dim, keys_are_values, .. } = *config;
        let (q, k) = (("q_proj", heads * head_dim), ("k_proj", kv_heads * head_dim));
        let projections = match (own, keys_are_values) {
            (false, _) => Projections::Q(loader.matrix(q.0, q.1, hidden)?),
            (true, true) => Projections::Qk(loader.matrices([q, k], hidden)?),
            (true, false) => Projections::Qkv(loader.matrices([q, k, ("v_proj", k.1)], hidden)?),
        };
        let key_value = || {
            let k_norm = loader.norm("k_norm", head_dim)?;
            Ok::<_, crate::Error>(KeyValueNorms { heads: kv_heads, k_norm, norm_values: true })
        };
        Ok(Self {
            projections,
            core: AttentionWeights {
                q_norm: loader.norm("q_norm", head_dim)?,
                key_value: own.then(key_value).transpose()?,
                rope: loader.backend.rope_table(&config.rope)?,
                eps,
                gated: false,
            },
            o_proj: loader.matrix("o_proj", hidden, heads * head_dim)?,
            config: config.clone(),
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
        let AttentionConfig { heads, window, .. } = self.config;
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
        let spec = Spec { heads, scale: 1.0, mask, soft_cap: None };
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

const POST_NORM: &str = "post_feedforward_layernorm";
const EXPERTS: ExpertNames = ExpertNames { stacked: "experts.switch_glu", original: "experts" };

impl<B: Backend> Moe<B> {
    /// `next` is the first norm of the layer behind this one.
    fn load(loader: &Loader<'_, B>, config: &MoeConfig, hidden: usize, next: Option<&[f32]>) -> Result<Self> {
        let MoeConfig { experts, top_k, width } = *config;
        let mut norms = Vec::with_capacity(4 * hidden);
        for name in ["post_feedforward_layernorm_1", "post_feedforward_layernorm_2", POST_NORM] {
            norms.extend(loader.norm_values(name, hidden)?);
        }
        let upload = |i: usize| loader.backend.upload(1, hidden, &norms[i * hidden..][..hidden]);
        let each = [upload(0)?, upload(1)?, upload(2)?];
        let with_next = |next: &[f32]| {
            norms.extend_from_slice(next);
            loader.backend.upload(1, 4 * hidden, &norms)
        };
        let with_next = next.map(with_next).transpose()?;
        let router = loader.at("router");
        // The router's scale times `d^-0.5` is the weight of its norm.
        let mut scale = router.values("scale", &[hidden])?;
        scale.iter_mut().for_each(|s| *s *= (hidden as f32).powf(-0.5));
        let shape = ExpertShape { count: experts, per_token: top_k, width, hidden };
        Ok(Self {
            weights: MoeWeights {
                router: router.matrix("proj", experts, hidden)?,
                router_norm: Some(loader.backend.upload(1, hidden, &scale)?),
                shared_gate: None,
                routing: Routing::SoftmaxScaled { top_k, scale: router.vector("per_expert_scale", experts)? },
                experts: loader.experts(&EXPERTS, &shape, None)?,
                activation: Activation::GeluTanh,
            },
            pre_norm: loader.norm("pre_feedforward_layernorm_2", hidden)?,
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
    /// The first norm of a layer, on the host.
    pub fn first_norm(loader: &Loader<'_, B>, config: &Config) -> Result<Vec<f32>> {
        loader.norm_values("input_layernorm", config.hidden)
    }

    /// With its own first norm, and that of the next.
    pub fn load(
        loader: &Loader<'_, B>,
        config: &Config,
        i: usize,
        (own_norm, next_norm): (&[f32], Option<&[f32]>),
    ) -> Result<Self> {
        let Config { hidden, eps, .. } = *config;
        let own = i < config.first_shared;
        let layer_input = |(width, _): (usize, usize)| {
            Ok::<_, crate::Error>(LayerInput {
                gate: loader.matrix("per_layer_input_gate", width, hidden)?,
                projection: loader.matrix("per_layer_projection", hidden, width)?,
                norm: loader.norm("post_per_layer_input_norm", hidden)?,
            })
        };
        Ok(Self {
            eps,
            input_norm: loader.backend.upload(1, hidden, own_norm)?,
            attention: Attention::load(&loader.at("self_attn"), config.attention(i), hidden, eps, own)?,
            post_attention_norm: loader.norm("post_attention_layernorm", hidden)?,
            pre_norm: loader.norm("pre_feedforward_layernorm", hidden)?,
            mlp: Mlp::load(&loader.at("mlp"), hidden, config.mlp_width(i), Activation::GeluTanh)?,
            behind: match &config.moe {
                Some(moe) => Behind::Experts(Moe::load(loader, moe, hidden, next_norm)?),
                None => Behind::Norm(loader.norm(POST_NORM, hidden)?),
            },
            layer_input: config.per_layer.map(layer_input).transpose()?,
            scalar: loader.values("layer_scalar", &[1])?[0],
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
