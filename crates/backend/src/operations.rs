//! The operations.

use checkpoint::Weight;

use crate::{
    Activation, Attention, AttentionWeights, Batch, Error, Factor, GdnShape, GdnWeights, GroupedSigmoid,
    Handle, KvImage, KvShape, LatentAttention, LatentWeights, LayerEnd, LayerStart, MlaWeights, MoeWeights,
    Norm, OperationTime, RecurrentImage, Result, RopeSpec, Shared, Span, UnitWeights, check, compositions,
    largest, largest_allowed,
};

/// A machine that runs models.
///
/// Letters in the formulas: `n` tokens of the batch, `d` hidden size, `t` a token, `h` a head; `rms(v) = v *
/// rsqrt(mean(v^2) + eps)`. Activations are f32 `[n, width]`, row-major; heads lie side by side in a row.
///
/// - An operation checks shapes, then computes or records, and returns a cheap handle; nothing waits until a `read`.
/// - Every operation gives for n tokens at once what n calls with one token each give, up to rounding.
/// - An argument taken by value may be overwritten with the result.
/// - Quantisation, biases of linear layers and the place where weights live are the weight types' business.
/// - Operations on caches take one cache per span of the batch, in the same order.
/// - Methods with a body are compositions of the others: a backend that can do them in one pass overrides them.
pub trait Backend: Sized + 'static {
    /// An activation or a learned vector.
    type Tensor: Handle + Clone + Send;
    /// `W [out, in]`, quantised or plain, with its optional bias: `W x` below includes the bias.
    type Matrix: Handle + Send;
    /// One matrix per attention head, for latent attention.
    type HeadMatrices: Send;
    /// The gate, up and down matrices of all experts of a layer, and of the one that every token passes through.
    type Experts: Send;
    /// A prepared rotary embedding.
    type Rope: Send;
    /// K distinct experts and their weights for each token.
    type Routes: Clone + Send;
    /// Keys and values of one layer of one sequence.
    type KvCache: Send;
    /// Convolution window and recurrent matrices of one Gated DeltaNet layer of one sequence.
    type Recurrent: Send;
    /// What a batch needs on the device.
    type BatchData;
    /// A step that was recorded to be started later; `()` where there is no such thing.
    type Recorded;
    /// A token that the machine has chosen, or will have.
    type Chosen;

    // ---- The machine ----

    /// A line for people: which machine, how many threads, which numerics.
    fn description(&self) -> String;

    /// Bytes that caches may still take on the device; `None` where that is unknown.
    fn free_memory(&self) -> Option<u64>;

    /// Time spent in each operation since the last call, where the machine was asked to measure it; taking it starts
    /// anew.
    fn take_profile(&self) -> Vec<OperationTime> {
        Vec::new()
    }

    // ---- Weights and values ----

    /// Takes over a matrix `[out, in]`. On the CPU it stays in the mapped file.
    fn matrix(&self, weight: &Weight) -> Result<Self::Matrix>;

    /// Takes over matrices that are multiplied with the same input: together they may cost less than one by one.
    fn matrices<const N: usize>(&self, weights: [&Weight; N]) -> Result<[Self::Matrix; N]> {
        let matrices = weights.iter().map(|weight| self.matrix(weight)).collect::<Result<Vec<_>>>()?;
        matrices.try_into().map_err(|_| unreachable!("as many matrices as weights"))
    }

    /// Takes over one matrix per head. `transposed` when the stored matrix is `[in, out]`, so that `y = W^T x`.
    fn head_matrices(&self, weight: &Weight, transposed: bool) -> Result<Self::HeadMatrices>;

    /// Takes over stacks `gate [E, width, d]`, `up [E, width, d]`, `down [E, d, width]`, and the same matrices of a shared expert,
    /// of a width of its own.
    fn expert_weights(&self, stacks: [&Weight; 3], shared: Option<[&Weight; 3]>) -> Result<Self::Experts>;

    /// Values from the host.
    fn upload(&self, rows: usize, cols: usize, values: &[f32]) -> Result<Self::Tensor>;

    /// Prepares a rotary embedding.
    fn rope_table(&self, spec: &RopeSpec) -> Result<Self::Rope>;

    /// Prepares a batch; called by [`Batch::new`] with at least one token, spans in row order without gaps.
    fn prepare_batch(&self, tokens: &[u32], spans: &[Span]) -> Result<Self::BatchData>;

    /// Calls `task(i)` for every `i` below `count`, several at the same time where the backend has threads that would otherwise
    /// wait: work on what was read, such as choosing tokens.
    fn spread(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(task);
    }

    /// Runs `task` beside the next operations, on a thread that would otherwise wait, if there is one; else drops it. For work that
    /// whoever needs it can still do later.
    fn beside(&self, task: Box<dyn FnOnce() + Send>) {
        drop(task);
    }

    /// How many sequences at most have their next tokens sooner one after the other, a step each, than all in one step.
    fn sooner_alone(&self) -> usize {
        1
    }

    /// Waits for everything recorded so far and returns the values of `x`, row after row.
    fn read(&self, x: &Self::Tensor) -> Result<Vec<f32>>;

    /// The same into memory that is used again.
    fn read_into(&self, x: &Self::Tensor, values: &mut Vec<f32>) -> Result<()> {
        *values = self.read(x)?;
        Ok(())
    }

    /// Waits, and returns the `k` largest values of each row of `x` with their columns, largest first, ties to the lower
    /// column; all values of a row that has fewer. A value that is not a number comes before all others, so that it
    /// does not go unnoticed.
    fn read_top(&self, x: &Self::Tensor, k: usize) -> Result<Vec<Vec<(u32, f32)>>> {
        let (values, cols) = (self.read(x)?, x.shape().cols);
        Ok(values.chunks_exact(cols.max(1)).map(|row| largest(row, k)).collect())
    }

    /// The same of the columns that are `allowed` in each row, in words of bits (see [`largest_allowed`]).
    fn read_top_allowed(
        &self,
        x: &Self::Tensor,
        k: usize,
        allowed: &[Option<&[u32]>],
    ) -> Result<Vec<Vec<(u32, f32)>>> {
        check::read_top_allowed(x.shape(), allowed)?;
        let (values, cols) = (self.read(x)?, x.shape().cols);
        let rows = values.chunks_exact(cols.max(1)).zip(allowed);
        Ok(rows.map(|(row, allowed)| largest_allowed(row, k, *allowed)).collect())
    }

    /// Waits, and returns expert ids and weights, K per token.
    fn read_routes(&self, routes: &Self::Routes) -> Result<(Vec<u32>, Vec<f32>)>;

    // ---- Steps recorded ahead ----

    /// Whether steps can be recorded before their token is known: where recording takes time, it can be done while the device is
    /// busy with the step before.
    fn records_ahead(&self) -> bool {
        false
    }

    /// Calls `step`, whose operations do not run before [`start`](Self::start); it must not wait for anything. Caches count its tokens at
    /// once, and nothing takes that back: who does not start what was recorded drops the states it works on, and until then nothing else
    /// is done with these.
    fn record<T, E: From<Error>>(
        &self,
        step: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<(T, Self::Recorded), E> {
        let _ = step;
        Err(E::from(Error::Unsupported("this machine does not record steps ahead".into())))
    }

    /// Starts what was recorded, after everything recorded meanwhile, with `token` as the one token of its `batch`.
    fn start(&self, recorded: Self::Recorded, batch: &Batch<Self>, token: u32) -> Result<()> {
        let _ = (recorded, batch, token);
        Err(Error::Unsupported("this machine does not record steps ahead".into()))
    }

    // ---- Tokens that the machine chooses ----

    /// Chooses the token that [`read_top`](Self::read_top) would find first for the one row of `logits`, and starts everything up to that: a step
    /// that [follows](Batch::following) can be recorded before the host knows the token. Only where steps are
    /// [recorded ahead](Self::records_ahead).
    fn choose(&self, logits: &Self::Tensor) -> Result<Self::Chosen> {
        let _ = logits;
        Err(Error::Unsupported("this machine does not choose tokens".into()))
    }

    /// Prepares the batch of a token that was chosen so.
    fn prepare_chosen(&self, chosen: &Self::Chosen, span: Span) -> Result<Self::BatchData> {
        let _ = (chosen, span);
        Err(Error::Unsupported("this machine does not choose tokens".into()))
    }

    /// Waits for a token that was chosen, not for what has been started since; with its logit.
    fn read_chosen(&self, chosen: Self::Chosen) -> Result<(u32, f32)> {
        let _ = chosen;
        Err(Error::Unsupported("this machine does not choose tokens".into()))
    }

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

    /// Splits every head's slice `[a | b]`, `a` being `first` wide, into all `a` and all `b`: query and gate of Qwen's
    /// gated attention, plain and rotated part of a DeepSeek query or (with one head) latent.
    fn split_heads(
        &self,
        x: &Self::Tensor,
        heads: usize,
        first: usize,
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    /// Qwen3-Next's fused projection: every key head's slice `[q | k | v.. | z..]`, with the value heads that read this
    /// key head, into `[all q | all k | all v]` and `[all z]`.
    fn split_qkvz(&self, x: &Self::Tensor, shape: &GdnShape) -> Result<(Self::Tensor, Self::Tensor)>;

    // ---- Products ----

    /// `y[t] = scale * table[tokens[t]]`
    fn embed(&self, table: &Self::Matrix, batch: &Batch<Self>, scale: f32) -> Result<Self::Tensor>;

    /// `y_m[t] = W_m x[t]` for several matrices over one input.
    fn matmuls<const N: usize>(
        &self,
        x: &Self::Tensor,
        weights: [&Self::Matrix; N],
    ) -> Result<[Self::Tensor; N]>;

    /// `y[t] = W x[t]`
    fn matmul(&self, x: &Self::Tensor, weight: &Self::Matrix) -> Result<Self::Tensor> {
        self.matmuls(x, [weight]).map(|[y]| y)
    }

    /// `y_m[t] = W_m (rms(x[t]) * w)` for several matrices over one input.
    fn norm_matmuls<const N: usize>(
        &self,
        x: &Self::Tensor,
        norm: Norm<'_, Self::Tensor>,
        weights: [&Self::Matrix; N],
    ) -> Result<[Self::Tensor; N]> {
        self.matmuls(&self.rms_norm(x, Some(norm.w), norm.eps)?, weights)
    }

    /// `y[t] = residual[t] + W x[t]`
    fn matmul_add(
        &self,
        x: &Self::Tensor,
        weight: &Self::Matrix,
        residual: Self::Tensor,
    ) -> Result<Self::Tensor>;

    /// `y[t] = act(Wg x[t]) * (Wu x[t])`
    fn gate_up(
        &self,
        x: &Self::Tensor,
        gate: &Self::Matrix,
        up: &Self::Matrix,
        activation: Activation,
    ) -> Result<Self::Tensor>;

    /// `y[t] = act(Wg x) * (Wu x)`, `x` being `rms(x[t]) * w`.
    fn norm_gate_up(
        &self,
        x: &Self::Tensor,
        norm: Norm<'_, Self::Tensor>,
        [gate, up]: [&Self::Matrix; 2],
        activation: Activation,
    ) -> Result<Self::Tensor> {
        self.gate_up(&self.rms_norm(x, Some(norm.w), norm.eps)?, gate, up, activation)
    }

    /// `h = r + rms(x) * post`, and what [`norm_gate_up`](Self::norm_gate_up) makes of it.
    fn norm_add_gate_up(
        &self,
        r: &Self::Tensor,
        [x, post]: [&Self::Tensor; 2],
        norm: Norm<'_, Self::Tensor>,
        gate_up: [&Self::Matrix; 2],
        activation: Activation,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        let h = self.norm_add(r, x, post, norm.eps, Factor::One)?;
        let y = self.norm_gate_up(&h, norm, gate_up, activation)?;
        Ok((h, y))
    }

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

    /// `s = r + x; y = rms(s) * w * factor`; returns `(s, y)`.
    fn add_norm(
        &self,
        r: &Self::Tensor,
        x: &Self::Tensor,
        w: &Self::Tensor,
        eps: f32,
        factor: Factor<'_, Self::Tensor>,
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    /// `y = (r + rms(x) * w) * factor`: Gemma's post norms (the factor is its layer scalar), and the first form of
    /// `combine_norm`.
    fn norm_add(
        &self,
        r: &Self::Tensor,
        x: &Self::Tensor,
        w: &Self::Tensor,
        eps: f32,
        factor: Factor<'_, Self::Tensor>,
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

    /// `y[t] = residual[t] + W x[t]`, `x` being per head `rms(v) * w * silu(z)`: what leaves a Gated DeltaNet layer.
    fn gated_norm_matmul_add(
        &self,
        [v, z]: [&Self::Tensor; 2],
        norm: Norm<'_, Self::Tensor>,
        heads: usize,
        weight: &Self::Matrix,
        residual: Self::Tensor,
    ) -> Result<Self::Tensor> {
        self.matmul_add(&self.gated_norm(v, z, norm.w, heads, norm.eps)?, weight, residual)
    }

    /// `x * sigmoid(g)`
    fn sigmoid_gate(&self, x: Self::Tensor, g: &Self::Tensor) -> Result<Self::Tensor>;

    // ---- Positions and attention ----

    /// Turns the first `rotary_dim` channels of each head: with `a = position * inv_freq[i]` the pair `(x, y)` becomes
    /// `factor * (x cos a - y sin a, x sin a + y cos a)`; other channels stay.
    fn rope(
        &self,
        x: Self::Tensor,
        batch: &Batch<Self>,
        rope: &Self::Rope,
        heads: usize,
    ) -> Result<Self::Tensor>;

    /// Writes keys and values of the batch behind those in the caches; a span's position must be its cache's length.
    fn kv_append(
        &self,
        k: &Self::Tensor,
        v: &Self::Tensor,
        batch: &Batch<Self>,
        caches: &mut [&mut Self::KvCache],
    ) -> Result<()>;

    /// Grouped-query attention over the caches, to which the batch's own keys have been appended:
    /// `s_j = softcap(scale * q[h] . k_j[h / group])`, `y[h] = sum_j softmax(s)_j v_j[h / group]` over the keys the mask
    /// allows, with a running maximum and sum, so that no `n x n` matrix exists.
    fn attention(
        &self,
        q: &Self::Tensor,
        batch: &Batch<Self>,
        caches: &[&Self::KvCache],
        spec: &Attention,
    ) -> Result<Self::Tensor>;

    /// The whole core of an attention layer, from its projections to `y [n, heads * value width]`: norms per head of queries and
    /// keys, their rotation, keys and values behind those in the caches, attention, and the gate that may follow each head's
    /// query in `q`. Without keys and values, those that another layer has put into the caches are used.
    fn self_attention(
        &self,
        q: Self::Tensor,
        kv: Option<[Self::Tensor; 2]>,
        weights: &AttentionWeights<Self>,
        batch: &Batch<Self>,
        caches: &mut [&mut Self::KvCache],
        spec: &Attention,
    ) -> Result<Self::Tensor> {
        compositions::self_attention(self, q, kv, weights, batch, caches, spec)
    }

    /// [`self_attention`](Self::self_attention) and the projection behind it: `Wo y[t]`, plus a residual.
    fn self_attention_out(
        &self,
        (q, kv): (Self::Tensor, Option<[Self::Tensor; 2]>),
        weights: &AttentionWeights<Self>,
        batch: &Batch<Self>,
        caches: &mut [&mut Self::KvCache],
        spec: &Attention,
        (out, residual): (&Self::Matrix, Option<Self::Tensor>),
    ) -> Result<Self::Tensor> {
        let y = self.self_attention(q, kv, weights, batch, caches, spec)?;
        compositions::projected(self, &y, (out, residual))
    }

    /// `q'[h] = W[h] q[h]`: brings the plain part of each query head `[n, heads * nope]` into latent space
    /// `[n, heads * rank]`.
    fn mla_absorb_q(&self, q: &Self::Tensor, weights: &Self::HeadMatrices) -> Result<Self::Tensor>;

    /// Writes latents `[n, rank]` (after their norm) and rotated key parts `[n, rope]` of the batch into latent caches.
    fn mla_append(
        &self,
        latent: &Self::Tensor,
        k_pe: &Self::Tensor,
        batch: &Batch<Self>,
        caches: &mut [&mut Self::KvCache],
    ) -> Result<()>;

    /// `s_j = scale * (q'[h] . c_j + q_pe[h] . k_pe_j)`, causal softmax, `o[h] = sum_j p_j c_j`.
    fn mla_attention(
        &self,
        q: &Self::Tensor,
        q_pe: &Self::Tensor,
        batch: &Batch<Self>,
        caches: &[&Self::KvCache],
        spec: &LatentAttention,
    ) -> Result<Self::Tensor>;

    /// `y[h] = W[h] o[h]`: from latent space `[n, heads * rank]` to values `[n, heads * value width]`.
    fn mla_unabsorb(&self, o: &Self::Tensor, weights: &Self::HeadMatrices) -> Result<Self::Tensor>;

    /// Latent attention from queries `[n, heads * nope]` and their rotated parts `[n, heads * rope]` to values
    /// `[n, heads * value width]`. In this form, with the matrices absorbed into the query and the output, a token
    /// costs one pass over the latents; expanding keys and values first gives the same and may be cheaper for many.
    fn mla(
        &self,
        q: &Self::Tensor,
        q_pe: &Self::Tensor,
        weights: &MlaWeights<Self::HeadMatrices>,
        batch: &Batch<Self>,
        caches: &[&Self::KvCache],
        spec: &LatentAttention,
    ) -> Result<Self::Tensor> {
        let q = self.mla_absorb_q(q, &weights.embed_q)?;
        let o = self.mla_attention(&q, q_pe, batch, caches, spec)?;
        self.mla_unabsorb(&o, &weights.unembed_out)
    }

    /// The whole core of a latent attention layer, from its projections `q [n, heads * (nope + rope)]` and `[latent | k_pe]` to values
    /// `[n, heads * value width]`: the norm of the latents, the rotation, latents behind those in the caches, attention.
    fn latent_attention(
        &self,
        q: &Self::Tensor,
        kv: &Self::Tensor,
        weights: &LatentWeights<Self>,
        batch: &Batch<Self>,
        caches: &mut [&mut Self::KvCache],
        spec: &LatentAttention,
    ) -> Result<Self::Tensor> {
        compositions::latent_attention(self, q, kv, weights, batch, caches, spec)
    }

    // ---- Mixture of experts ----

    /// `p = softmax(logits[t])`, the `top_k` largest (ties to the lower index), optionally renormalised to sum 1.
    fn route_softmax(&self, logits: &Self::Tensor, top_k: usize, renormalise: bool) -> Result<Self::Routes>;

    /// As above, renormalised, then each weight times `per_expert_scale[e]`, and not renormalised again (Gemma 4).
    fn route_softmax_scaled(
        &self,
        logits: &Self::Tensor,
        top_k: usize,
        per_expert_scale: &Self::Tensor,
    ) -> Result<Self::Routes>;

    /// `p = sigmoid(logits[t])`; choose by `p + bias`; with several groups only the `kept_groups` with the largest sum
    /// of their two best stay; weights are the unbiased `p` of the chosen, normalised, times `scaling` (DeepSeek-V3).
    fn route_sigmoid_grouped(
        &self,
        logits: &Self::Tensor,
        bias: &Self::Tensor,
        spec: &GroupedSigmoid,
    ) -> Result<Self::Routes>;

    /// `y[t] = sum_k w_k Wdown_e (act(Wgate_e x[t]) * Wup_e x[t])` over the chosen experts.
    fn experts(
        &self,
        x: &Self::Tensor,
        routes: &Self::Routes,
        weights: &Self::Experts,
        activation: Activation,
    ) -> Result<Self::Tensor>;

    /// Says that `experts` will be called with these routes, or, where they are a guess, with routes like these: where experts are
    /// read from elsewhere, what is missing can begin to be read. Changes no result.
    fn expect_experts(&self, _routes: &Self::Routes, _weights: &Self::Experts, _guess: bool) {}

    /// Says that [`Backend::moe`] will soon be called with something like `h`. Where experts are read from elsewhere, its choices
    /// are worth asking for in advance. Changes no result.
    fn expect_moe(
        &self,
        _h: &Self::Tensor,
        _norm: Norm<'_, Self::Tensor>,
        _weights: &MoeWeights<Self>,
    ) -> Result<()> {
        Ok(())
    }

    /// What the shared expert makes of every token: `Wdown (act(Wgate x[t]) * Wup x[t])`; `None` where there is none.
    fn shared_expert(
        &self,
        x: &Self::Tensor,
        weights: &Self::Experts,
        activation: Activation,
    ) -> Result<Option<Self::Tensor>>;

    /// A whole layer of experts: `x = rms(h) * w; y = experts(x) + shared expert(x)`, plus `h` where the residual is wanted. The shared
    /// expert is weighted where it has a gate. The router sees `x`, or its own norm of `h`.
    fn moe(
        &self,
        h: &Self::Tensor,
        norm: Norm<'_, Self::Tensor>,
        weights: &MoeWeights<Self>,
        add: bool,
    ) -> Result<Self::Tensor> {
        compositions::moe(self, h, norm, weights, add)
    }

    /// `h = r + rms(x) * post`, and what a gated unit makes of `rms(h) * w` and [`moe`](Self::moe), without the residual, of `h`: Gemma's
    /// dense and routed halves, which know nothing of each other. Returns `[h, dense, routed]`.
    fn norm_add_unit_moe(
        &self,
        r: &Self::Tensor,
        [x, post]: [&Self::Tensor; 2],
        (norm, unit): (Norm<'_, Self::Tensor>, &UnitWeights<Self>),
        (moe_norm, weights): (Norm<'_, Self::Tensor>, &MoeWeights<Self>),
    ) -> Result<[Self::Tensor; 3]> {
        compositions::norm_add_unit_moe(self, r, [x, post], (norm, unit), (moe_norm, weights))
    }

    /// `y[t] = h[t] + moe[t]`, plus the shared expert: `sigmoid(gate[t]) * shared[t]`, or `shared[t]` as it is.
    fn combine(
        &self,
        h: &Self::Tensor,
        moe: &Self::Tensor,
        shared: Shared<'_, Self::Tensor>,
    ) -> Result<Self::Tensor>;

    /// `y = rms(a) * wa + rms(b) * wb`: Gemma's dense and routed halves side by side.
    fn combine_norm(
        &self,
        a: &Self::Tensor,
        wa: &Self::Tensor,
        b: &Self::Tensor,
        wb: &Self::Tensor,
        eps: f32,
    ) -> Result<Self::Tensor>;

    /// `y = (r + rms(rms(a) * wa + rms(b) * wb) * w) * factor`: the end of Gemma's layers with experts.
    fn combine_norm_add(
        &self,
        r: &Self::Tensor,
        [a, b]: [&Self::Tensor; 2],
        [wa, wb, w]: [&Self::Tensor; 3],
        eps: f32,
        factor: Factor<'_, Self::Tensor>,
    ) -> Result<Self::Tensor> {
        self.norm_add(r, &self.combine_norm(a, wa, b, wb, eps)?, w, eps, factor)
    }

    /// `h`, as the end of a layer says, and [`norm_matmuls`](Self::norm_matmuls) of it with the next layer's norm, where these are better made together; `None` where
    /// they are not, and whoever asks makes one after the other.
    fn end_norm_matmuls<const N: usize>(
        &self,
        _end: &LayerEnd<'_, Self::Tensor>,
        _weights: [&Self::Matrix; N],
    ) -> Result<Option<LayerStart<Self::Tensor, N>>> {
        Ok(None)
    }

    // ---- Gated DeltaNet ----

    /// Depthwise causal convolution over `[window, x]`, then SiLU: `y[t, c] = silu(sum_j w[c, j] x[t - kernel + 1 + j, c])`.
    /// The window becomes the last `kernel - 1` inputs, also when there are fewer new ones.
    fn conv_causal(
        &self,
        x: &Self::Tensor,
        w: &Self::Tensor,
        batch: &Batch<Self>,
        states: &mut [&mut Self::Recurrent],
    ) -> Result<Self::Tensor>;

    /// On `[q | k | v]`, per head: `q = q * rsqrt(sum(q^2) + 1e-6) / sqrt(dk)`, `k = k * rsqrt(sum(k^2) + 1e-6)`; `v` stays.
    /// That is `rms(q) / dk` and `rms(k) / sqrt(dk)` with the eps of the mean being `1e-6 / dk`.
    fn gdn_qk_norm(&self, qkv: Self::Tensor, shape: &GdnShape) -> Result<Self::Tensor>;

    /// `g = exp(-exp(a_log) * softplus(a + dt_bias))`, `beta = sigmoid(b)`; returns `(g, beta)`, each
    /// `[n, value_heads]`. Softplus does not overflow, `g` may be exactly 0.
    fn gdn_gates(
        &self,
        a: &Self::Tensor,
        b: &Self::Tensor,
        a_log: &Self::Tensor,
        dt_bias: &Self::Tensor,
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    /// For each token and value head: `S *= g; u = (v - S k) * beta; S += u k^T; y = S q`.
    fn gdn(
        &self,
        qkv: &Self::Tensor,
        g: &Self::Tensor,
        beta: &Self::Tensor,
        batch: &Batch<Self>,
        states: &mut [&mut Self::Recurrent],
    ) -> Result<Self::Tensor>;

    /// The whole core of a Gated DeltaNet layer, from its projections `[q | k | v]`, `a`, `b` to `y [n, value_total]`.
    fn gated_delta(
        &self,
        qkv: &Self::Tensor,
        a: &Self::Tensor,
        b: &Self::Tensor,
        weights: &GdnWeights<Self::Tensor>,
        batch: &Batch<Self>,
        states: &mut [&mut Self::Recurrent],
    ) -> Result<Self::Tensor> {
        let qkv = self.conv_causal(qkv, &weights.conv, batch, states)?;
        let qkv = self.gdn_qk_norm(qkv, &weights.shape)?;
        let (g, beta) = self.gdn_gates(a, b, &weights.a_log, &weights.dt_bias)?;
        self.gdn(&qkv, &g, &beta, batch, states)
    }

    // ---- Caches and states ----

    /// An empty cache. It grows as tokens are appended.
    fn kv_cache(&self, shape: &KvShape) -> Result<Self::KvCache>;

    /// Forgets all but the first `len` tokens. Returns false, and changes nothing, when a ring has already overwritten
    /// tokens that the shorter cache would need.
    fn kv_truncate(&self, cache: &mut Self::KvCache, len: usize) -> Result<bool>;

    /// Waits, and copies a cache to the host.
    fn kv_save(&self, cache: &Self::KvCache) -> Result<KvImage>;

    /// A cache from its image.
    fn kv_load(&self, shape: &KvShape, image: &KvImage) -> Result<Self::KvCache>;

    /// A copy that later steps do not change.
    fn kv_clone(&self, shape: &KvShape, cache: &Self::KvCache) -> Result<Self::KvCache> {
        self.kv_load(shape, &self.kv_save(cache)?)
    }

    /// A state of zeros.
    fn recurrent(&self, shape: &GdnShape) -> Result<Self::Recurrent>;

    /// A copy that later steps do not change.
    fn recurrent_clone(&self, state: &Self::Recurrent) -> Result<Self::Recurrent>;

    /// Waits, and copies a state to the host.
    fn recurrent_save(&self, state: &Self::Recurrent) -> Result<RecurrentImage>;

    /// A state from its image.
    fn recurrent_load(&self, shape: &GdnShape, image: &RecurrentImage) -> Result<Self::Recurrent>;
}
