//! One Gemma 4 layer.

use backend::{Activation, Attention as Spec, Backend, Batch, Factor, Mask};

use super::config::{AttentionConfig, Config, MoeConfig};
use crate::Result;
use crate::layers::Mlp;
use crate::loader::{ExpertNames, ExpertShape, Loader};

/// Keys and values of a layer that has its own.
struct KeyValue<B: Backend> {
    k_proj: B::Matrix,
    /// Absent where values are the keys.
    v_proj: Option<B::Matrix>,
    k_norm: B::Tensor,
}

/// Attention with normalised queries, keys and values, over its own cache or an earlier layer's.
struct Attention<B: Backend> {
    config: AttentionConfig,
    eps: f32,
    q_proj: B::Matrix,
    o_proj: B::Matrix,
    q_norm: B::Tensor,
    key_value: Option<KeyValue<B>>,
    rope: B::Rope,
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
        let key_value = || {
            Ok::<_, crate::Error>(KeyValue {
                k_proj: loader.matrix("k_proj", kv_heads * head_dim, hidden)?,
                v_proj: match keys_are_values {
                    true => None,
                    false => Some(loader.matrix("v_proj", kv_heads * head_dim, hidden)?),
                },
                k_norm: loader.norm("k_norm", head_dim)?,
            })
        };
        Ok(Self {
            q_proj: loader.matrix("q_proj", heads * head_dim, hidden)?,
            o_proj: loader.matrix("o_proj", hidden, heads * head_dim)?,
            q_norm: loader.norm("q_norm", head_dim)?,
            key_value: own.then(key_value).transpose()?,
            rope: loader.backend.rope_table(&config.rope)?,
            config: config.clone(),
            eps,
        })
    }

    fn forward(
        &self,
        b: &B,
        x: &B::Tensor,
        batch: &Batch<B>,
        mut caches: Vec<&mut B::KvCache>,
    ) -> Result<B::Tensor> {
        let AttentionConfig { heads, kv_heads, window, .. } = self.config;
        let (q, k, v) = match &self.key_value {
            Some(KeyValue { k_proj, v_proj: Some(v_proj), .. }) => {
                let [q, k, v] = b.matmuls(x, [&self.q_proj, k_proj, v_proj])?;
                (q, Some(k), Some(v))
            }
            Some(KeyValue { k_proj, v_proj: None, .. }) => {
                let [q, k] = b.matmuls(x, [&self.q_proj, k_proj])?;
                (q, Some(k.clone()), Some(k))
            }
            None => (b.matmul(x, &self.q_proj)?, None, None),
        };
        if let (Some(own), Some(k), Some(v)) = (&self.key_value, k, v) {
            let k = b.rms_norm_heads(k, Some(&own.k_norm), kv_heads, self.eps)?;
            let k = b.rope(k, batch, &self.rope, kv_heads)?;
            let v = b.rms_norm_heads(v, None, kv_heads, self.eps)?;
            b.kv_append(&k, &v, batch, &mut caches)?;
        }
        let q = b.rms_norm_heads(q, Some(&self.q_norm), heads, self.eps)?;
        let q = b.rope(q, batch, &self.rope, heads)?;
        let caches: Vec<&B::KvCache> = caches.into_iter().map(|c| &*c).collect();
        let mask = window.map_or(Mask::Causal, Mask::Window);
        let y = b.attention(&q, batch, &caches, &Spec { heads, scale: 1.0, mask, soft_cap: None })?;
        Ok(b.matmul(&y, &self.o_proj)?)
    }
}

/// The routed half of a layer.
struct Moe<B: Backend> {
    top_k: usize,
    /// The router's scale times `d^-0.5`.
    router_norm: B::Tensor,
    router: B::Matrix,
    per_expert_scale: B::Tensor,
    experts: B::Experts,
    pre_norm: B::Tensor,
    post_norm: B::Tensor,
    dense_post_norm: B::Tensor,
}

const EXPERTS: ExpertNames = ExpertNames { stacked: "experts.switch_glu", original: "experts" };

impl<B: Backend> Moe<B> {
    fn load(loader: &Loader<'_, B>, config: &MoeConfig, hidden: usize) -> Result<Self> {
        let MoeConfig { experts, top_k, width } = *config;
        let router = loader.at("router");
        let mut scale = router.values("scale", &[hidden])?;
        scale.iter_mut().for_each(|s| *s *= (hidden as f32).powf(-0.5));
        Ok(Self {
            top_k,
            router_norm: loader.backend.upload(1, hidden, &scale)?,
            router: router.matrix("proj", experts, hidden)?,
            per_expert_scale: router.vector("per_expert_scale", experts)?,
            experts: loader
                .experts(&EXPERTS, &ExpertShape { count: experts, per_token: top_k, width, hidden })?,
            pre_norm: loader.norm("pre_feedforward_layernorm_2", hidden)?,
            post_norm: loader.norm("post_feedforward_layernorm_2", hidden)?,
            dense_post_norm: loader.norm("post_feedforward_layernorm_1", hidden)?,
        })
    }

    /// The experts of `h`, or, where `h` is only like what will come, a guess; they can begin to be read.
    fn route(&self, b: &B, h: &B::Tensor, eps: f32, guess: bool) -> Result<B::Routes> {
        let logits = b.matmul(&b.rms_norm(h, Some(&self.router_norm), eps)?, &self.router)?;
        let routes = b.route_softmax_scaled(&logits, self.top_k, &self.per_expert_scale)?;
        b.expect_experts(&routes, &self.experts, guess);
        Ok(routes)
    }

    /// The routed part of `h`, beside the dense unit's output.
    fn forward(
        &self,
        b: &B,
        h: &B::Tensor,
        routes: &B::Routes,
        dense: &B::Tensor,
        eps: f32,
    ) -> Result<B::Tensor> {
        let x = b.rms_norm(h, Some(&self.pre_norm), eps)?;
        let routed = b.experts(&x, routes, &self.experts, Activation::GeluTanh)?;
        Ok(b.combine_norm(dense, &self.dense_post_norm, &routed, &self.post_norm, eps)?)
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
        if b.reads_experts()
            && let Some(moe) = &self.moe
        {
            moe.route(b, &h, self.eps, true)?;
        }
        let x = b.rms_norm(&h, Some(&self.input_norm), self.eps)?;
        let x = self.attention.forward(b, &x, batch, caches)?;
        let h = b.norm_add(&h, &x, &self.post_attention_norm, self.eps, Factor::One)?;

        let routes = self.moe.as_ref().map(|moe| moe.route(b, &h, self.eps, false)).transpose()?;
        let x = b.rms_norm(&h, Some(&self.pre_norm), self.eps)?;
        let mut x = self.mlp.forward(b, &x)?;
        if let (Some(moe), Some(routes)) = (&self.moe, &routes) {
            x = moe.forward(b, &h, routes, &x, self.eps)?;
        }
        let scalar = Factor::Scalar(self.scalar);
        let (Some(own), Some(input)) = (&self.layer_input, input) else {
            return Ok(b.norm_add(&h, &x, &self.post_norm, self.eps, scalar)?);
        };
        let h = b.norm_add(&h, &x, &self.post_norm, self.eps, Factor::One)?;
        let x = b.glu(b.matmul(&h, &own.gate)?, &input, Activation::GeluTanh)?;
        let x = b.matmul(&x, &own.projection)?;
        Ok(b.norm_add(&h, &x, &own.norm, self.eps, scalar)?)
    }
}
