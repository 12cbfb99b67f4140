//! Caches and states in a pool: where they lie, and what lay there before, changes no result.

use backend::pool::{LayerShape, Pool, Slot};
use backend::{
    Adjusted, Batch, CacheFloat, Choice, GdnShape, KvShape, LatentScores, Ops, Run, Sampling, Scores, Tokens,
    Weights,
};
use checkpoint::{Bytes, Float, Weight};
use cpu::{Cpu, Numerics, Options};

const NUMERICS: [Numerics; 2] = [Numerics::Exact, Numerics::Fast];

fn cpu(numerics: Numerics) -> Cpu {
    Cpu::new(Options { threads: Some(2), numerics, ..Options::default() }).unwrap()
}

/// Between -2 and 2, one of fifty far larger.
fn floats(len: usize, seed: usize) -> Vec<f32> {
    let value = |i: usize| ((i * 7919 + seed * 104_729) % 1013) as f32 / 253.0 - 2.0;
    (0..len).map(|i| value(i) * if i % 50 == seed % 50 { 30.0 } else { 1.0 }).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The next tokens of a sequence: its slot, how many, and where its values come from.
type Part = (Slot, usize, usize);

/// One layer, whose tokens have values by their positions.
#[derive(Clone, Copy, Debug)]
struct Layer(KvShape);

impl Layer {
    fn pool(self, b: &Cpu) -> Pool<Cpu> {
        Pool::new(b, &[LayerShape::Kv(self.0)], 1 << 30).unwrap()
    }

    /// One step; returns what attention gives for each of its sequences.
    fn step(self, b: &Cpu, pool: &mut Pool<Cpu>, parts: &[Part]) -> Vec<Vec<u32>> {
        let KvShape { heads, key_dim, value_dim, window, .. } = self.0;
        let latent = value_dim == 0;
        let rank = key_dim - 8;
        // Of queries, keys and values: for each token by its position.
        let rows = |width: usize, kind: usize| {
            let mut rows = Vec::new();
            for (slot, n, seed) in parts {
                for t in 0..*n {
                    let of_token = floats(width, 100 * (pool.len(*slot) + t) + 10 * seed + kind);
                    rows.extend(of_token.iter().map(|v| if *seed == BAD { f32::NAN } else { *v }));
                }
            }
            b.upload(rows.len() / width.max(1), width, &rows).unwrap()
        };
        let queries = 2 * heads;
        let inputs = if latent {
            [rows(queries * rank, 0), rows(queries * 8, 1), rows(rank, 2), rows(8, 3)]
        } else {
            let none = b.upload(0, 0, &[]).unwrap();
            [rows(queries * key_dim, 0), none, rows(heads * key_dim, 2), rows(heads * value_dim, 3)]
        };
        for (slot, n, _) in parts {
            assert!(pool.reserve(b, *slot, *n).unwrap());
        }
        let ids: Vec<_> = parts.iter().map(|(_, n, _)| vec![0; *n]).collect();
        let next: Vec<_> =
            parts.iter().zip(&ids).map(|((slot, ..), ids)| (*slot, Tokens::Ids(ids))).collect();
        let batch = Batch::new(b, pool, &next).unwrap();
        let [q, q_pe, k, v] = &inputs;
        let y = if latent {
            b.mla_append(k, v, &batch, pool.slabs_mut(), 0).unwrap();
            let scores = LatentScores { heads: queries, scale: 0.1 };
            b.mla_attention(q, q_pe, &batch, pool.slabs(), 0, &scores).unwrap()
        } else {
            b.kv_append(k, v, &batch, pool.slabs_mut(), 0).unwrap();
            let scores = Scores { heads: queries, scale: 0.1, window, soft_cap: None };
            b.sdpa(q, &batch, pool.slabs(), 0, &scores).unwrap()
        };
        let y = b.read(&y).unwrap();
        let width = y.len() / batch.rows();
        let of_span = |span: &backend::Span| bits(&y[span.row * width..][..span.len * width]);
        let result = batch.spans().iter().map(of_span).collect();
        parts.iter().for_each(|(slot, n, _)| pool.advance(*slot, *n));
        result
    }
}

/// The seed of a sequence of what is not a number.
const BAD: usize = 9;

fn layers() -> Vec<Layer> {
    let mut layers = Vec::new();
    for float in [CacheFloat::F32, CacheFloat::F16, CacheFloat::Q8] {
        for (heads, key_dim, value_dim, window) in
            [(2, 33, 17, None), (1, 64, 64, Some(70)), (3, 20, 40, Some(3)), (1, 72, 0, None)]
        {
            layers.push(Layer(KvShape { heads, key_dim, value_dim, float, window }));
        }
    }
    layers
}

/// Tokens of the steps of a sequence: across blocks, up to the end of one, and one by one.
const STEPS: [usize; 8] = [5, 59, 1, 100, 1, 1, 25, 130];

#[test]
fn a_sequence_among_others_in_used_blocks_is_as_it_is_alone() {
    for (numerics, layer) in NUMERICS.iter().flat_map(|n| layers().into_iter().map(move |l| (*n, l))) {
        let b = cpu(numerics);
        let mut pool = layer.pool(&b);
        let slot = pool.create(&b).unwrap().unwrap();
        let alone: Vec<_> =
            STEPS.iter().map(|n| layer.step(&b, &mut pool, &[(slot, *n, 1)]).remove(0)).collect();
        let image = pool.save(&b, slot).unwrap();

        let mut pool = layer.pool(&b);
        let [bad, other] = [0; 2].map(|_| pool.create(&b).unwrap().unwrap());
        layer.step(&b, &mut pool, &[(bad, 300, BAD)]);
        pool.release(bad);
        let slot = pool.create(&b).unwrap().unwrap();
        for (n, alone) in STEPS.iter().zip(&alone) {
            let y = layer.step(&b, &mut pool, &[(other, 7, 2), (slot, *n, 1)]);
            assert!(y[1] == *alone, "{numerics:?}, {layer:?}, {n} tokens");
        }
        assert!(pool.save(&b, slot).unwrap() == image, "{numerics:?}, {layer:?}");
    }
}

#[test]
fn forks_and_loaded_sequences_go_on_like_the_first() {
    for (numerics, layer) in NUMERICS.iter().flat_map(|n| layers().into_iter().map(move |l| (*n, l))) {
        let b = cpu(numerics);
        let mut pool = layer.pool(&b);
        let [bad, slot] = [0; 2].map(|_| pool.create(&b).unwrap().unwrap());
        layer.step(&b, &mut pool, &[(bad, 400, BAD)]);
        pool.release(bad);
        layer.step(&b, &mut pool, &[(slot, 150, 1)]);
        let image = pool.save(&b, slot).unwrap();
        let fork = pool.fork(&b, slot, 150).unwrap().unwrap();
        let loaded = pool.load(&b, &image).unwrap().unwrap();
        assert!(pool.save(&b, loaded).unwrap() == image, "{numerics:?}, {layer:?}");
        // The first and the fork share a block; each writes to one of its own.
        let parts = [slot, fork, loaded].map(|slot| (slot, 30, 1));
        let [first, fork, loaded] = layer.step(&b, &mut pool, &parts).try_into().unwrap();
        assert!(first == fork && first == loaded, "{numerics:?}, {layer:?}");
    }
}

/// What remains of a window's image may begin within a block that held something else.
#[test]
fn nothing_is_seen_before_the_first_position_of_an_image() {
    for (numerics, layer) in NUMERICS.iter().flat_map(|n| layers().into_iter().map(move |l| (*n, l))) {
        let Some(window) = layer.0.window else { continue };
        let b = cpu(numerics);
        let mut pool = layer.pool(&b);
        let slot = pool.create(&b).unwrap().unwrap();
        layer.step(&b, &mut pool, &[(slot, 170, 1)]);
        let mut image = pool.save(&b, slot).unwrap();
        for kv in &mut image.layers {
            let backend::pool::LayerImage::Kv(kv) = kv else { panic!("no keys") };
            let first = 171 - window;
            let cut = |bytes: &mut Vec<u8>| {
                let row = bytes.len() / (kv.len - kv.first);
                bytes.drain(..row * (first - kv.first));
            };
            cut(&mut kv.keys);
            cut(&mut kv.values);
            kv.first = first;
        }
        let expected = layer.step(&b, &mut pool, &[(slot, 1, 1)]);
        let mut pool = layer.pool(&b);
        let bad = pool.create(&b).unwrap().unwrap();
        layer.step(&b, &mut pool, &[(bad, 400, BAD)]);
        pool.release(bad);
        let loaded = pool.load(&b, &image).unwrap().unwrap();
        assert!(pool.save(&b, loaded).unwrap() == image, "{numerics:?}, {layer:?}");
        assert!(layer.step(&b, &mut pool, &[(loaded, 1, 1)]) == expected, "{numerics:?}, {layer:?}");
    }
}

#[test]
fn states_lie_in_rows_of_their_own() {
    let shape = GdnShape { key_heads: 2, value_heads: 4, key_dim: 8, value_dim: 40, kernel: 4 };
    let b = cpu(Numerics::Exact);
    let pool = |b: &Cpu| Pool::new(b, &[LayerShape::Recurrent(shape)], 1 << 30).unwrap();
    let taps = b.vector(shape.channels(), 4, &floats(4 * shape.channels(), 7)).unwrap();
    let step = |pool: &mut Pool<Cpu>, slots: &[Slot], n: usize, seed: usize| {
        let rows = |width: usize, seed: usize| {
            let one = floats(n * width, seed);
            b.upload(n * slots.len(), width, &one.repeat(slots.len())).unwrap()
        };
        let ids = vec![0; n];
        let next: Vec<_> = slots.iter().map(|slot| (*slot, Tokens::Ids(&ids))).collect();
        let batch = Batch::new(&b, pool, &next).unwrap();
        let x = rows(shape.channels(), seed);
        let x = b.conv_causal(&x, &taps, &batch, pool.slabs_mut(), 0).unwrap();
        let x = b.gdn_qk_norm(x, &shape).unwrap();
        let gate = b.upload(n * slots.len(), 4, &vec![0.75; n * slots.len() * 4]).unwrap();
        let y = b.gdn(&x, &gate, &gate, &batch, pool.slabs_mut(), 0).unwrap();
        slots.iter().for_each(|slot| pool.advance(*slot, n));
        bits(&b.read(&y).unwrap())
    };
    let mut alone = pool(&b);
    let slot = alone.create(&b).unwrap().unwrap();
    // A window that is not full yet, one that has moved on by more and by less than its length.
    let expected = [2, 5, 1, 1].map(|n| step(&mut alone, &[slot], n, n));
    let mut shared = pool(&b);
    let [a, c] = [0; 2].map(|_| shared.create(&b).unwrap().unwrap());
    step(&mut shared, &[a], 9, 5);
    shared.release(a);
    let a = shared.create(&b).unwrap().unwrap();
    for (n, expected) in [2, 5, 1, 1].into_iter().zip(&expected) {
        assert!(step(&mut shared, &[c, a], n, n) == expected.repeat(2), "{n} tokens");
    }
    let image = shared.save(&b, a).unwrap();
    assert!(image == alone.save(&b, slot).unwrap());
    let fork = shared.fork(&b, a, 9).unwrap().unwrap();
    let loaded = shared.load(&b, &image).unwrap().unwrap();
    assert!(shared.save(&b, loaded).unwrap() == image);
    let next = step(&mut alone, &[slot], 3, 4);
    assert!(step(&mut shared, &[fork, loaded], 3, 4) == next.repeat(2));
    // What they were made from has not moved.
    assert!(step(&mut shared, &[a], 3, 4) == next);
}

#[test]
fn two_spans_of_one_sequence_are_refused() {
    let layer = layers()[0];
    let KvShape { heads, key_dim, value_dim, .. } = layer.0;
    let b = cpu(Numerics::Exact);
    let mut pool = layer.pool(&b);
    let slot = pool.create(&b).unwrap().unwrap();
    assert!(pool.reserve(&b, slot, 4).unwrap());
    let batch = Batch::new(&b, &pool, &[(slot, Tokens::Ids(&[0])), (slot, Tokens::Ids(&[0]))]).unwrap();
    let k = b.upload(2, heads * key_dim, &floats(2 * heads * key_dim, 0)).unwrap();
    let v = b.upload(2, heads * value_dim, &floats(2 * heads * value_dim, 0)).unwrap();
    let error = b.kv_append(&k, &v, &batch, pool.slabs_mut(), 0).unwrap_err();
    assert!(error.to_string().contains("two sequences"), "{error}");
}

#[test]
fn a_chosen_token_is_remembered_for_its_slot() {
    let b = cpu(Numerics::Exact);
    let mut pool = layers()[0].pool(&b);
    let [first, second] = [0; 2].map(|_| pool.create(&b).unwrap().unwrap());
    for slot in [first, second] {
        assert!(pool.reserve(&b, slot, 1).unwrap());
    }
    let follow = |pool: &Pool<Cpu>, slots: &[Slot]| {
        let next: Vec<_> = slots.iter().map(|slot| (*slot, Tokens::Last)).collect();
        Batch::new(&b, pool, &next)
    };
    let missing = follow(&pool, &[first]).map(|_| ()).unwrap_err().to_string();
    assert!(missing.contains("no token was chosen"), "{missing}");

    let sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 5.0,
        frequency_penalty: 0.0,
        seed: 0,
    };
    let choice = |slot, counts_last, adjusted| Choice {
        slot: Some(slot),
        sampling: &sampling,
        draw: 0,
        adjusted,
        counts_last,
        allowed: None,
        logprobs: None,
    };
    let logits = b.upload(2, 4, &[0.0, 3.0, 2.0, 1.0, 0.0, 1.0, 2.0, 3.0]).unwrap();
    let submit = |pool: &mut Pool<Cpu>, choices: &[Choice<'_>]| {
        let ticket = b.submit(Some(&logits), choices, pool.slabs_mut())?;
        let sampled = b.collect(ticket)?;
        Ok::<Vec<u32>, backend::Error>(sampled.iter().map(|sampled| sampled.token).collect())
    };
    assert!(submit(&mut pool, &[choice(first, true, &[]), choice(second, true, &[])]).is_err());
    let chosen = submit(&mut pool, &[choice(first, false, &[]), choice(second, false, &[])]).unwrap();
    assert_eq!(chosen, [1, 3]);
    // The last one counts, beside those that the host knows.
    let known = [Adjusted { token: 2, seen: true, generated: 1, bias: 0.0 }];
    let chosen = submit(&mut pool, &[choice(first, true, &[]), choice(second, true, &known)]).unwrap();
    assert_eq!(chosen, [2, 1]);
    assert!(submit(&mut pool, &[choice(first, false, &[])]).is_err(), "one choice for two rows");
    let batch = follow(&pool, &[second, first]).unwrap();
    assert_eq!(batch.tokens(), [0, 0]);
    let table = |values: &[f32]| {
        let bytes = Bytes::from_vec(values.iter().flat_map(|v| v.to_le_bytes()).collect());
        b.linear(&[&Weight::plain("table", 1, values.len(), 1, Float::F32, bytes).unwrap()]).unwrap()
    };
    let embedded = b.embed(&table(&[0.0, 10.0, 20.0, 30.0]), &batch, 1.0).unwrap();
    assert_eq!(b.read(&embedded).unwrap(), [10.0, 20.0]);
    assert!(b.embed(&table(&[0.0, 10.0]), &batch, 1.0).is_err(), "a token beyond the table");
}
