//! One Gemma 4 layer.

use backend::{
    Activation, Attention as Spec, AttentionWeights, Backend, Batch, Factor, KeyValueNorms, Mask, MoeWeights,
    Norm, Routing,
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

    /// `f(norm(h))`
    fn forward(
        &self,
        b: &B,
        h: &B::Tensor,
        norm: Norm<'_, B::Tensor>,
        batch: &Batch<B>,
        mut caches: Vec<&mut B::KvCache>,
    ) -> Result<B::Tensor> {
        let AttentionConfig { heads, window, .. } = self.config;
        let (q, kv) = match &self.projections {
            Projections::Q(q) => {
                let [q] = b.norm_matmuls(h, norm, [q])?;
                (q, None)
            }
            Projections::Qk(matrices) => {
                let [q, k] = b.norm_matmuls(h, norm, matrices.each_ref())?;
                (q, Some([k.clone(), k]))
            }
            Projections::Qkv(matrices) => {
                let [q, k, v] = b.norm_matmuls(h, norm, matrices.each_ref())?;
                (q, Some([k, v]))
            }
        };
        let mask = window.map_or(Mask::Causal, Mask::Window);
        let spec = Spec { heads, scale: 1.0, mask, soft_cap: None };
        Ok(b.self_attention_out((q, kv), &self.core, batch, &mut caches, &spec, (&self.o_proj, None))?)
    }
}

/// The routed half of a layer.
struct Moe<B: Backend> {
    weights: MoeWeights<B>,
    pre_norm: B::Tensor,
    post_norm: B::Tensor,
    dense_post_norm: B::Tensor,
}

const EXPERTS: ExpertNames = ExpertNames { stacked: "experts.switch_glu", original: "experts" };

impl<B: Backend> Moe<B> {
    fn load(loader: &Loader<'_, B>, config: &MoeConfig, hidden: usize) -> Result<Self> {
        let MoeConfig { experts, top_k, width } = *config;
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
            post_norm: loader.norm("post_feedforward_layernorm_2", hidden)?,
            dense_post_norm: loader.norm("post_feedforward_layernorm_1", hidden)?,
        })
    }
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
    moe: Option<Moe<B>>,
    post_norm: B::Tensor,
    layer_input: Option<LayerInput<B>>,
    scalar: f32,
}

impl<B: Backend> Layer<B> {
    pub fn load(loader: &Loader<'_, B>, config: &Config, i: usize) -> Result<Self> {
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
            input_norm: loader.norm("input_layernorm", hidden)?,
            attention: Attention::load(&loader.at("self_attn"), config.attention(i), hidden, eps, own)?,
            post_attention_norm: loader.norm("post_attention_layernorm", hidden)?,
            pre_norm: loader.norm("pre_feedforward_layernorm", hidden)?,
            mlp: Mlp::load(&loader.at("mlp"), hidden, config.mlp_width(i), Activation::GeluTanh)?,
            moe: config.moe.as_ref().map(|moe| Moe::load(loader, moe, hidden)).transpose()?,
            post_norm: loader.norm("post_feedforward_layernorm", hidden)?,
            layer_input: config.per_layer.map(layer_input).transpose()?,
            scalar: loader.values("layer_scalar", &[1])?[0],
        })
    }

    /// `h [n, d]` to the next layer's; `input [n, width]` is this layer's own input, for models that have such.
    pub fn forward(
        &self,
        b: &B,
        h: B::Tensor,
        input: Option<B::Tensor>,
        batch: &Batch<B>,
        caches: Vec<&mut B::KvCache>,
    ) -> Result<B::Tensor> {
        let eps = self.eps;
        if let Some(moe) = &self.moe {
            b.expect_moe(&h, Norm { w: &moe.pre_norm, eps }, &moe.weights)?;
        }
        let x = self.attention.forward(b, &h, Norm { w: &self.input_norm, eps }, batch, caches)?;
        let own_input = self.layer_input.as_ref().zip(input);
        let factor = if own_input.is_some() { Factor::One } else { Factor::Scalar(self.scalar) };
        let (pre, x_post) = (Norm { w: &self.pre_norm, eps }, [&x, &self.post_attention_norm]);

        let h = match &self.moe {
            Some(Moe { weights, pre_norm, post_norm, dense_post_norm }) => {
                let moe = (Norm { w: pre_norm, eps }, weights);
                let [h, dense, routed] = b.norm_add_unit_moe(&h, x_post, (pre, &self.mlp.0), moe)?;
                let norms = [dense_post_norm, post_norm, &self.post_norm];
                b.combine_norm_add(&h, [&dense, &routed], norms, eps, factor)?
            }
            None => {
                let (h, dense) = self.mlp.forward_after(b, &h, x_post, pre)?;
                b.norm_add(&h, &dense, &self.post_norm, eps, factor)?
            }
        };
        let Some((own, input)) = own_input else { return Ok(h) };
        let x = b.glu(b.matmul(&h, &own.gate)?, &input, Activation::GeluTanh)?;
        let x = b.matmul(&x, &own.projection)?;
        Ok(b.norm_add(&h, &x, &own.norm, eps, Factor::Scalar(self.scalar))?)
    }
}
