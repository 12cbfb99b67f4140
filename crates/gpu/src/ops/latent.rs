//! Queries and latents on their way to latent attention.

use ::backend::{Handle, KvShape, LatentAttention, Result};

use super::attention::{Cached, seen};
use super::{by_item, word};
use crate::kernels::attention_step::{
    CHUNK, Cache, LatentHeads, MergedRows, WIDEST_PLAIN, heads_merged, latent_heads, latent_step,
};
use crate::{Gpu, HeadMatrices, Tensor};

impl Gpu {
    /// Queries and latents of spans of one token and their attention over few positions, up to values `[n,
    /// heads * value width]`. `None` where they do not fit.
    pub(crate) fn latent_heads(
        &self,
        [q, kv]: [&Tensor; 2],
        w: &LatentAttention<Gpu>,
        cached: &Cached<'_>,
    ) -> Result<Option<Tensor>> {
        let (norm, scores, slab, batch) = (&w.latent_norm, w.scores(), cached.slab, cached.batch);
        let (rank, pe, nope) = (norm.w.shape().cols, w.rope.rotary_dim(), w.nope);
        let (embed, unembed) = (&w.embed_q, &w.unembed_out);
        let [words, value_words] = [rank + pe, rank].map(|width| slab.words(width));
        let profile = &self.device.profile;
        let consts = LatentHeads::choose(profile, embed.stack.format, slab.shape.float, [rank, pe]);
        let merged = MergedRows::choose(profile, unembed.stack.format, unembed.stack.eights());
        let (Some(consts), Some(merged)) = (consts, merged) else { return Ok(None) };
        let spans = batch.spans();
        let single = batch.rows() == spans.len();
        let rounds = single && self.rounds(1, &embed.stack);
        let simple = |m: &HeadMatrices| m.stack.parts.len() == 1 && !m.transposed && m.count == scores.heads;
        let whole = [words, value_words, nope / 8, pe].iter().all(|n| n.is_multiple_of(4));
        let fits = simple(embed) && simple(unembed) && (embed.rows, unembed.stack.cols) == (rank, rank);
        let positions: usize = spans.iter().map(|span| seen(None, span)).sum();
        let few = scores.heads * positions <= profile.few_latent_positions;
        if !rounds || !whole || nope > WIDEST_PLAIN || !fits || !few {
            return Ok(None);
        }
        let (angles, first_angle) = self.angles_of(&w.rope, batch)?;
        let part_len =
            positions.div_ceil(profile.latent_workgroups.div_ceil(scores.heads)).next_multiple_of(CHUNK);
        let parts = spans.iter().map(|span| seen(None, span).div_ceil(part_len)).max().unwrap_or_default();
        let params = latent_heads::Params {
            weight: embed.stack.params(),
            nope: word(nope),
            pe: word(pe),
            rank: word(rank),
            key_heads: 1,
            key_fours: word(words / 4),
            value_stride: word(words / 4),
            value_fours: word(value_words / 4),
            first_span: 0,
            spans: word(spans.len()),
            table: cached.table,
            table_stride: cached.table_stride,
            window: 0,
            first_angle: word(first_angle),
            interleaved: w.rope.interleaved().into(),
            eps: norm.eps,
            scale: scores.scale,
            soft_cap: 0.0,
            heads: word(scores.heads),
            part_len: word(part_len),
        };
        let results = parts * spans.len() * scores.heads;
        let partial = self.pool.take(4 * (results * (rank + 2)) as u64)?;
        let part = &embed.stack.parts[0];
        let bindings = latent_heads::Bindings {
            codes: &part.codes,
            scales: &part.scales,
            q: q.buffer(),
            kv: kv.buffer(),
            norm: norm.w.buffer(),
            steps: &angles,
            keys: slab.keys(),
            partial: &partial,
        };
        let grid = [scores.heads, parts, spans.len()].map(word);
        self.run(latent_heads::call(consts, params, bindings), grid);

        let (stack, y) = (&unembed.stack, self.tensor(batch.rows(), scores.heads * unembed.rows)?);
        let part = &stack.parts[0];
        let params = heads_merged::Params {
            weight: stack.params(),
            head_rows: word(unembed.rows),
            heads: word(scores.heads),
            first_span: 0,
            spans: word(spans.len()),
            window: 0,
            part_len: word(part_len),
        };
        let bindings = heads_merged::Bindings {
            codes: &part.codes,
            scales: &part.scales,
            partial: &partial,
            steps: cached.steps(),
            y: y.buffer(),
        };
        let grid = [word(unembed.rows).div_ceil(merged.rows), word(scores.heads), word(spans.len())];
        self.run(heads_merged::call(merged, params, bindings), grid);
        Ok(Some(y))
    }

    /// Queries and latents of all tokens of a batch: the queries' parts without and with a position, which
    /// has turned; the latents in their places.
    pub(crate) fn latent_step(
        &self,
        [q, kv]: [&Tensor; 2],
        w: &LatentAttention<Gpu>,
        cached: &Cached<'_>,
    ) -> Result<[Tensor; 2]> {
        let (norm, heads, rows) = (&w.latent_norm, w.heads, cached.batch.rows());
        let KvShape { key_dim, float, .. } = cached.slab.shape;
        let (rank, pe, nope) = (norm.w.shape().cols, w.rope.rotary_dim(), w.nope);
        let parts = [self.tensor(rows, heads * nope)?, self.tensor(rows, heads * pe)?];
        let (angles, first_angle) = self.angles_of(&w.rope, cached.batch)?;
        let params = latent_step::Params {
            rows: word(rows),
            spans: word(cached.batch.spans().len()),
            heads: word(heads),
            nope: word(nope),
            pe: word(pe),
            rank: word(rank),
            key_words: word(cached.slab.words(key_dim)),
            table: cached.table,
            table_stride: cached.table_stride,
            first_angle: word(first_angle),
            interleaved: w.rope.interleaved().into(),
            eps: norm.eps,
        };
        let bindings = latent_step::Bindings {
            q: q.buffer(),
            kv: kv.buffer(),
            norm: norm.w.buffer(),
            steps: &angles,
            q_plain: parts[0].buffer(),
            q_turned: parts[1].buffer(),
            keys: cached.slab.keys(),
        };
        let grid = by_item(heads + 1, rows);
        self.run(latent_step::call(Cache { cache: float }, params, bindings), grid);
        Ok(parts)
    }
}
