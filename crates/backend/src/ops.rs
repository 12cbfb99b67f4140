//! The operations: one formula each, no fusion.

use crate::{
    Activation, Batch, GdnShape, GdnVectors, Handle, LatentScores, Result, RoutedShape, Routing, Scores,
    Shared, Span, StepTables, Weights,
};

/// What a machine can compute, one formula per method.
///
/// Letters in the formulas: `n` tokens of the batch, `d` hidden size, `t` a token, `h` a head; `rms(v) = v *
/// rsqrt(mean(v^2) + eps)`. Activations are f32 `[n, width]`, row-major; heads lie side by side in a row.
///
/// - Arguments have been checked: models call through [`Checked`](crate::Checked).
/// - An operation computes or records, and returns a cheap handle; nothing waits until a `read`.
/// - Every operation gives for n tokens at once what n calls with one token each give, up to rounding.
/// - An argument taken by value may be overwritten with the result.
/// - Operations on caches take the pool's memory and the number of a layer in it; the batch says where its sequences lie
///   there.
pub trait Ops: Weights {
    /// K distinct experts and their weights for each token.
    type Routes: Handle<Shape = RoutedShape> + Clone + Send;
    /// Caches and recurrent states of all sequences, in places that a [`Pool`](crate::pool::Pool) hands out.
    type Slabs: Send;
    /// What a batch needs on the device.
    type BatchData;

    // ---- Values ----

    /// Prepares a batch; called by [`Batch::new`] with at least one token, spans in row order without gaps.
    fn prepare_batch(
        &self,
        tokens: &[u32],
        spans: &[Span],
        tables: &StepTables,
        slabs: &Self::Slabs,
    ) -> Result<Self::BatchData>;

    /// Copies values from the host.
    fn upload(&self, rows: usize, cols: usize, values: &[f32]) -> Result<Self::Tensor>;

    /// Waits for everything recorded so far and returns the values of `x`, row after row.
    fn read(&self, x: &Self::Tensor) -> Result<Vec<f32>>;

    /// Waits, and returns expert ids and weights, K per token.
    fn read_routes(&self, routes: &Self::Routes) -> Result<(Vec<u32>, Vec<f32>)>;

    // ---- Rows and columns ----

    /// The same values under another shape with as many values.
    fn reshape(&self, x: Self::Tensor, rows: usize, cols: usize) -> Result<Self::Tensor>;

    /// `y[i] = x[rows[i]]`
    fn select_rows(&self, x: &Self::Tensor, rows: &[usize]) -> Result<Self::Tensor>;

    /// `y[t, c] = x[t, start + c]`, `width` columns.
    fn columns(&self, x: &Self::Tensor, start: usize, width: usize) -> Result<Self::Tensor>;

    /// The rows of all `parts`, which are as wide as each other, one part after the other; at least one part.
    fn join_rows(&self, parts: &[&Self::Tensor]) -> Result<Self::Tensor>;

    /// `y[t] = [a[t] | b[t]]`
    fn join_columns(&self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor>;

    /// Splits every head's slice `[a | b]`, `a` being `first` wide, into all `a` and all `b`: query and gate of
    /// Qwen's gated attention, plain and rotated part of a DeepSeek query or (with one head) latent.
    fn split_heads(
        &self,
        x: &Self::Tensor,
        heads: usize,
        first: usize,
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    /// Splits Qwen3-Next's fused projection: every key head's slice `[q | k | v.. | z..]`, with the value heads that
    /// read this key head, into `[all q | all k | all v]` and `[all z]`.
    fn split_qkvz(&self, x: &Self::Tensor, shape: &GdnShape) -> Result<(Self::Tensor, Self::Tensor)>;

    // ---- Matrices ----

    /// `y[t] = scale * table[tokens[t]]`
    fn embed(&self, table: &Self::Linear, batch: &Batch<Self>, scale: f32) -> Result<Self::Tensor>;

    /// `y_m[t] = W_m x[t]` for each of the matrices.
    fn matmuls(&self, x: &Self::Tensor, weights: &Self::Linear) -> Result<Vec<Self::Tensor>>;

    /// `y[t] = residual[t] + W x[t]`
    fn matmul_add(
        &self,
        x: &Self::Tensor,
        weight: &Self::Linear,
        residual: Self::Tensor,
    ) -> Result<Self::Tensor>;

    /// `y[t] = act(Wg x[t]) * (Wu x[t])`
    fn gate_up(
        &self,
        x: &Self::Tensor,
        gate_up: &Self::Linear,
        activation: Activation,
    ) -> Result<Self::Tensor>;

    /// `y = act(gate) * up`, element by element.
    fn glu(&self, gate: Self::Tensor, up: &Self::Tensor, activation: Activation) -> Result<Self::Tensor>;

    /// `y = cap * tanh(x / cap)`
    fn soft_cap(&self, x: Self::Tensor, cap: f32) -> Result<Self::Tensor>;

    // ---- Norms and residuals ----

    /// `y[t] = rms(x[t]) * w`; `w [1, d]` may be absent.
    fn rms_norm(&self, x: &Self::Tensor, w: Option<&Self::Tensor>, eps: f32) -> Result<Self::Tensor>;

    /// The same over each head's slice, `w [1, width of a head]` shared by the heads.
    fn rms_norm_heads(
        &self,
        x: Self::Tensor,
        w: Option<&Self::Tensor>,
        heads: usize,
        eps: f32,
    ) -> Result<Self::Tensor>;

    /// `y = (r + rms(x) * w) * factor`: a norm behind a block (Gemma, whose factor is its layer scalar).
    fn norm_add(
        &self,
        r: &Self::Tensor,
        x: &Self::Tensor,
        w: &Self::Tensor,
        eps: f32,
        factor: f32,
    ) -> Result<Self::Tensor>;

    /// Per head `rms(v) * w * silu(z)`, `w [1, width of a head]`.
    fn gated_norm(
        &self,
        v: &Self::Tensor,
        z: &Self::Tensor,
        w: &Self::Tensor,
        heads: usize,
        eps: f32,
    ) -> Result<Self::Tensor>;

    /// `x * sigmoid(g)`
    fn sigmoid_gate(&self, x: Self::Tensor, g: &Self::Tensor) -> Result<Self::Tensor>;

    // ---- Positions and attention ----

    /// Rotates the first `rotary_dim` channels of each head: with `a = position * inv_freq[i]` the pair `(x, y)`
    /// becomes `factor * (x cos a - y sin a, x sin a + y cos a)`; other channels stay.
    fn rope(
        &self,
        x: Self::Tensor,
        batch: &Batch<Self>,
        rope: &Self::Rope,
        heads: usize,
    ) -> Result<Self::Tensor>;

    /// Writes keys and values of the batch where its tokens have their places.
    fn kv_append(
        &self,
        k: &Self::Tensor,
        v: &Self::Tensor,
        batch: &Batch<Self>,
        slabs: &mut Self::Slabs,
        layer: usize,
    ) -> Result<()>;

    /// Grouped-query attention over a layer's keys, those of the batch included, which have been appended:
    /// `s_j = softcap(scale * q[h] . k_j[h / group])`, `y[h] = sum_j softmax(s)_j v_j[h / group]` over the keys that
    /// are seen, with a running maximum and sum, so that no `n x n` matrix exists.
    fn sdpa(
        &self,
        q: &Self::Tensor,
        batch: &Batch<Self>,
        slabs: &Self::Slabs,
        layer: usize,
        scores: &Scores,
    ) -> Result<Self::Tensor>;

    /// `q'[h] = W[h] q[h]`: brings the plain part of each query head `[n, heads * nope]` into latent space
    /// `[n, heads * rank]`.
    fn mla_absorb_q(&self, q: &Self::Tensor, weights: &Self::HeadMatrices) -> Result<Self::Tensor>;

    /// Writes latents `[n, rank]` (after their norm) and rotated key parts `[n, rope]` of the batch where its tokens have
    /// their places.
    fn mla_append(
        &self,
        latent: &Self::Tensor,
        k_pe: &Self::Tensor,
        batch: &Batch<Self>,
        slabs: &mut Self::Slabs,
        layer: usize,
    ) -> Result<()>;

    /// `s_j = scale * (q'[h] . c_j + q_pe[h] . k_pe_j)`, causal softmax, `o[h] = sum_j p_j c_j`.
    fn mla_attention(
        &self,
        q: &Self::Tensor,
        q_pe: &Self::Tensor,
        batch: &Batch<Self>,
        slabs: &Self::Slabs,
        layer: usize,
        scores: &LatentScores,
    ) -> Result<Self::Tensor>;

    /// `y[h] = W[h] o[h]`: from latent space `[n, heads * rank]` to values `[n, heads * value width]`.
    fn mla_unabsorb(&self, o: &Self::Tensor, weights: &Self::HeadMatrices) -> Result<Self::Tensor>;

    // ---- Mixture of experts ----

    /// Chooses experts by logits `[n, experts]`; see [`Routing`] for the formulas.
    fn route(&self, logits: &Self::Tensor, routing: &Routing<Self::Tensor>) -> Result<Self::Routes>;

    /// `y[t] = sum_k w_k Wdown_e (act(Wgate_e x[t]) * Wup_e x[t])` over the chosen experts.
    fn experts(
        &self,
        x: &Self::Tensor,
        routes: &Self::Routes,
        weights: &Self::Experts,
        activation: Activation,
    ) -> Result<Self::Tensor>;

    /// Says that `experts` will be called with these routes or, where they are speculative, with routes like these:
    /// where experts are read from disk, what is missing can begin to be read. Changes no result.
    fn prefetch_experts(&self, _routes: &Self::Routes, _weights: &Self::Experts, _speculative: bool) {}

    /// What the shared expert makes of every token: `Wdown (act(Wgate x[t]) * Wup x[t])`; `None` where there is none.
    fn shared_expert(
        &self,
        x: &Self::Tensor,
        weights: &Self::Experts,
        activation: Activation,
    ) -> Result<Option<Self::Tensor>>;

    /// `y[t] = h[t] + moe[t]`, plus the shared expert: `sigmoid(gate[t]) * shared[t]`, or `shared[t]` as it is.
    fn combine(
        &self,
        h: &Self::Tensor,
        moe: &Self::Tensor,
        shared: Shared<'_, Self::Tensor>,
    ) -> Result<Self::Tensor>;

    /// `y = rms(a) * wa + rms(b) * wb`: Gemma's dense and routed branches side by side.
    fn combine_norm(
        &self,
        a: &Self::Tensor,
        wa: &Self::Tensor,
        b: &Self::Tensor,
        wb: &Self::Tensor,
        eps: f32,
    ) -> Result<Self::Tensor>;

    // ---- Gated DeltaNet ----

    /// Depthwise causal convolution over `[window, x]`, then SiLU: `y[t, c] = silu(sum_j w[c, j] x[t - kernel + 1 + j, c])`.
    /// The window becomes the last `kernel - 1` inputs, also when there are fewer new ones.
    fn conv_causal(
        &self,
        x: &Self::Tensor,
        w: &Self::Tensor,
        batch: &Batch<Self>,
        slabs: &mut Self::Slabs,
        layer: usize,
    ) -> Result<Self::Tensor>;

    /// On `[q | k | v]`, per head: `q = q * rsqrt(sum(q^2) + 1e-6) / sqrt(dk)`, `k = k * rsqrt(sum(k^2) + 1e-6)`; `v`
    /// stays. That is `rms(q) / dk` and `rms(k) / sqrt(dk)` with the eps of the mean being `1e-6 / dk`.
    fn gdn_qk_norm(&self, qkv: Self::Tensor, shape: &GdnShape) -> Result<Self::Tensor>;

    /// `g = exp(-exp(a_log) * softplus(a + dt_bias))`, `beta = sigmoid(b)`; returns `(g, beta)`, each
    /// `[n, value_heads]`. Softplus does not overflow, `g` may be exactly 0.
    fn gdn_gates(
        &self,
        a: &Self::Tensor,
        b: &Self::Tensor,
        vectors: &GdnVectors<Self::Tensor>,
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    /// For each token and value head: `S *= g; u = (v - S k) * beta; S += u k^T; y = S q`.
    fn gdn(
        &self,
        qkv: &Self::Tensor,
        g: &Self::Tensor,
        beta: &Self::Tensor,
        batch: &Batch<Self>,
        slabs: &mut Self::Slabs,
        layer: usize,
    ) -> Result<Self::Tensor>;
}
