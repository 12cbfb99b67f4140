//! How near kernels come to what the device's memory allows. Not part of the tests: run with
//! `cargo test --release -p pleiad-gpu roofline -- --ignored --nocapture`.

use std::cell::RefCell;
use std::time::Instant;

use ::backend::pool::{LayerShape, Pool, Slot};
use ::backend::{
    Activation, Attention, Batch, CacheFloat, GatedDelta, GdnLayout, GdnShape, GdnVectors, KeyValues,
    KvShape, LatentAttention, Moe, Norm, Ops, Pairing, Residual, RopeSpec, Routing, Run, Scores, Tokens,
    Weights,
};
use checkpoint::{Bytes, Float, Weight};

use crate::kernels::elementwise::sigmoid_gate;
use crate::ops::attention::Cached;
use crate::ops::attention_step::Projected;
use crate::ops::gdn::DeltaInputs;
use crate::ops::rounded::{Besides, NormRef, Prologue};
use crate::recorder::Copy;
use crate::{Choice, Gpu, Options};

/// Seconds of the device's time that one of `n` runs takes, in the middle of 15 rounds, each of them one submission. The host's time does not
/// count, and neither do the device's first moments, in which its clock is slow.
fn seconds(gpu: &Gpu, n: usize, run: impl Fn(usize)) -> f64 {
    let round = || gpu.recorder.device_seconds(|| (0..n).for_each(&run)) / n as f64;
    let started = Instant::now();
    round();
    while !gpu.adapter().software && started.elapsed().as_secs_f64() < 0.6 {
        round();
    }
    let rounds = if gpu.adapter().software { 1 } else { 15 };
    let mut times: Vec<f64> = (0..rounds).map(|_| round()).collect();
    times.sort_by(f64::total_cmp);
    times[rounds / 2]
}

/// Sequences of so many tokens each in a pool.
fn sequences(gpu: &Gpu, layers: &[LayerShape], count: usize, len: usize) -> (Pool<Gpu>, Vec<Slot>) {
    let mut pool = Pool::new(gpu, layers, 1 << 40).unwrap();
    let mut slot = || {
        let slot = pool.create(gpu).unwrap().unwrap();
        assert!(pool.reserve(gpu, slot, len).unwrap());
        pool.advance(slot, len);
        slot
    };
    let slots = (0..count).map(|_| slot()).collect();
    (pool, slots)
}

/// The next `n` tokens of each of them.
fn step(gpu: &Gpu, pool: &mut Pool<Gpu>, slots: &[Slot], n: usize) -> Batch<Gpu> {
    slots.iter().for_each(|slot| assert!(pool.reserve(gpu, *slot, n).unwrap()));
    let tokens = vec![0; n];
    let next: Vec<_> = slots.iter().map(|slot| (*slot, Tokens::Ids(&tokens))).collect();
    Batch::new(gpu, pool, &next).unwrap()
}

fn weight(count: usize, rows: usize, cols: usize) -> Weight {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = |n: usize| -> Vec<u8> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..n).map(|_| next()).collect()
    };
    let scale = |n: usize| Float::Bf16.encode(&vec![0.01; n]);
    let groups = count * rows * cols / 64;
    let codes = bytes(count * rows * cols / 2);
    let planes = [codes, scale(groups), scale(groups)].map(Bytes::from_vec);
    let [codes, scales, biases] = planes;
    Weight::affine("w", count, rows, cols, 4, 64, Float::Bf16, codes, scales, biases).unwrap()
}

#[test]
#[ignore = "a measurement"]
fn roofline() {
    let gpu = Gpu::new(&Options { adapter: Choice::Any, profile: true, ..Options::default() }).unwrap();
    println!("{}", gpu.description());
    let software = gpu.adapter().software;
    let apart =
        Gpu::new(&Options { adapter: Choice::Any, profile: true, chains: Some(false), ..Options::default() });
    println!("products, each behind a barrier:");
    products(&apart.unwrap(), software);
    let size: u64 = if software { 64 << 20 } else { 1 << 30 };
    let (a, b) = (gpu.pool.fresh("copy", size).unwrap(), gpu.pool.fresh("copy", size).unwrap());
    let copy = seconds(&gpu, 5, |_| gpu.recorder.copy(&a, &b, &[Copy { from: 0, to: 0, len: size }]));
    println!("copy: {:.0} GB/s", 2.0 * size as f64 / copy / 1e9);
    drop((a, b));

    let small = gpu.upload(1, 64, &[1.0; 64]).unwrap();
    let outputs = [gpu.upload(1, 64, &[1.0; 64]).unwrap(), gpu.upload(1, 64, &[1.0; 64]).unwrap()];
    let empty = seconds(&gpu, 200, |i| {
        let (x, y) = (&outputs[i % 2], &outputs[(i + 1) % 2]);
        let bindings = sigmoid_gate::Bindings { x: x.buffer(), gate: small.buffer(), y: y.buffer() };
        gpu.run_each(sigmoid_gate::call(sigmoid_gate::Params { len: 64 }, bindings), 64);
    });
    println!("a dependent dispatch: {:.2} us", empty * 1e6);

    let started = Instant::now();
    for i in 0..1000 {
        let (x, y) = (&outputs[i % 2], &outputs[(i + 1) % 2]);
        let bindings = sigmoid_gate::Bindings { x: x.buffer(), gate: small.buffer(), y: y.buffer() };
        gpu.run_each(sigmoid_gate::call(sigmoid_gate::Params { len: 64 }, bindings), 64);
    }
    gpu.recorder.submit();
    println!(
        "recording and submitting one: {:.2} us of the host's time",
        started.elapsed().as_secs_f64() * 1e3
    );
    gpu.device.wgpu.poll(wgpu::PollType::wait_indefinitely()).unwrap();

    println!("products as they come, in a chain side by side:");
    products(&gpu, software);
    experts(&gpu, software);
    norms(&gpu);
    mixers(&gpu, software);
    cores(&gpu, software);
    prompts(&gpu, software);
    gpu.device.check().unwrap();
}

/// Matrices of which none is still in a cache when its turn comes.
fn copies(bytes: f64, software: bool) -> usize {
    if software { 2 } else { ((300e6 / bytes) as usize).clamp(1, 64) }
}

fn told(what: &str, bytes: f64, time: f64) {
    let (us, wanted) = (time * 1e6, bytes / 4.3e6 + 6.0);
    println!(
        "{what}: {us:.1} us, {:.0} GB/s; its bytes at 4.3 TB/s plus 6 us: {wanted:.1}",
        bytes / time / 1e9
    );
}

/// One token's products, as three models make them.
fn products(gpu: &Gpu, software: bool) {
    let shapes: &[(&str, usize, usize, Kind)] = &[
        ("qwen, into Gated DeltaNet", 12_416, 2048, Kind::Norm),
        ("qwen, out of it", 2048, 4096, Kind::GatedNorm),
        ("qwen, into attention", 9216, 2048, Kind::Norm),
        ("qwen, out of it", 2048, 4096, Kind::Plain),
        ("qwen, router", 257, 2048, Kind::Norm),
        ("qwen, head", 248_320, 2048, Kind::Norm),
        ("gemma, into attention", 8192, 2816, Kind::Norm),
        ("gemma, out of it", 2816, 4096, Kind::Plain),
        ("gemma, out of global attention", 2816, 8192, Kind::Plain),
        ("gemma, gate and up", 4224, 2816, Kind::Glu),
        ("gemma, down", 2816, 2112, Kind::Plain),
        ("gemma, router", 128, 2816, Kind::Norm),
        ("gemma, head", 262_144, 2816, Kind::Norm),
        ("deepseek-mini, down to latents", 2112, 2048, Kind::Norm),
        ("deepseek-mini, queries", 6144, 1536, Kind::Norm),
        ("deepseek-mini, head", 129_280, 2048, Kind::Norm),
    ];
    for &(name, rows, cols, kind) in shapes {
        if software && rows > 300 {
            continue;
        }
        let weight = weight(1, rows, cols);
        let bytes = (rows * cols) as f64 * 4.5 / 8.0;
        let copies = copies(bytes, software);
        let matrices: Vec<_> = (0..copies).map(|_| gpu.linear(&[&weight]).unwrap()).collect();
        let values: Vec<f32> = (0..cols).map(|i| (i as f32 * 0.7).sin()).collect();
        let x = gpu.upload(1, cols, &values).unwrap();
        let head = gpu.upload(1, 128, &values[..128]).unwrap();
        gpu.recorder.submit();
        let norm = NormRef { w: &x, eps: 1e-6 };
        let input = match kind {
            Kind::Plain => Prologue::Plain(&x),
            Kind::Norm | Kind::Glu => Prologue::Norm(&x, norm),
            Kind::GatedNorm => Prologue::GatedNorm([&x, &x], NormRef { w: &head, eps: 1e-6 }),
        };
        let glu = matches!(kind, Kind::Glu).then_some(Activation::Silu);
        // In a chain results stay for a round: it ends where one takes the place of another, and large ones, like a head's, would do so at once.
        let results = RefCell::new(Vec::new());
        let time = seconds(gpu, 100, |i| {
            let besides = Besides { glu, ..Besides::default() };
            let mut results = results.borrow_mut();
            if i == 0 || !gpu.device.chains() {
                results.clear();
                gpu.pool.wake();
            }
            results
                .push(gpu.rounded_product(&input, matrices[i % copies].stack(), 0..rows, &besides).unwrap());
        });
        told(&format!("{name}, [{rows}, {cols}]"), bytes, time);
    }
}

/// What a product's input is made of, or its results.
#[derive(Clone, Copy)]
enum Kind {
    Plain,
    Norm,
    GatedNorm,
    Glu,
}

/// A layer of experts of one token, in turn for several tokens, so that no expert is still in a cache.
fn experts(gpu: &Gpu, software: bool) {
    // Experts, hidden, width, of a token.
    let shapes = [
        ("qwen", 256, 2048, 512, 8),
        ("gemma", 128, 2816, 704, 8),
        ("deepseek-mini", 64, 2048, 1024, 8),
        ("small", 32, 256, 64, 4),
    ];
    for (name, count, hidden, width, top_k) in shapes {
        if software != (name == "small") {
            continue;
        }
        let [up, down] = [weight(count, width, hidden), weight(count, hidden, width)];
        let weights = Moe {
            norm: Norm { w: gpu.upload(1, hidden, &vec![1.0; hidden]).unwrap(), eps: 1e-6 },
            router: gpu.linear(&[&weight(1, count, hidden)]).unwrap(),
            router_norm: None,
            routing: Routing::Softmax { top_k, renormalise: true },
            experts: gpu.expert_weights([&up, &up, &down], None).unwrap(),
            activation: Activation::Silu,
            dense: None,
            residual: Residual::Plain,
        };
        let values = |seed: usize, n: usize| -> Vec<f32> {
            (0..n).map(|i| ((i * i + seed * 7919) as f32 * 0.7).sin()).collect()
        };
        let h = gpu.upload(1, hidden, &values(0, hidden)).unwrap();
        // What experts take is whatever lies behind the logits.
        let logits = (1..32).map(|seed| {
            let logits = gpu.tensor_with_digits(count, hidden).unwrap();
            gpu.recorder.write(logits.buffer(), bytemuck::cast_slice(&values(seed, count)));
            logits
        });
        let logits: Vec<_> = logits.collect();
        gpu.recorder.submit();
        let bytes = (top_k * 3 * hidden * width) as f64 * 4.5 / 8.0;
        let time = seconds(gpu, 100, |i| {
            let logits = &logits[i % logits.len()];
            let up = gpu.experts_step_up(logits, &weights).unwrap();
            gpu.experts_step_down(&up, &weights.experts, Some(&h)).unwrap();
        });
        told(&format!("{name}, {top_k} experts of {count}, two dispatches"), bytes, time);
    }
}

/// Norms of one token that are dispatches of their own.
fn norms(gpu: &Gpu) {
    let width = 2816;
    let values: Vec<f32> = (0..width).map(|i| (i as f32 * 0.7).sin()).collect();
    let [r, a, b, w] = [(); 4].map(|()| gpu.upload(1, width, &values).unwrap());
    gpu.recorder.submit();
    let one = seconds(gpu, 100, |_| {
        gpu.norm_add_of([&r, &a, &w], 1e-6, 1.0).unwrap();
    });
    let three = seconds(gpu, 100, |_| {
        gpu.combine_norm_add_of([&r, &a, &b], [&w, &w, &w], 1e-6, 0.5).unwrap();
    });
    println!("gemma, a norm and a sum: {:.1} us; three norms and a sum: {:.1} us", one * 1e6, three * 1e6);
}

/// What mixes tokens in one layer, for one token: Gated DeltaNet, and attention over some contexts.
fn mixers(gpu: &Gpu, software: bool) {
    let shape = GdnShape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, kernel: 4 };
    let zeros = |rows, cols| gpu.upload(rows, cols, &vec![0.5; rows * cols]).unwrap();
    let channels = shape.channels();
    let weights = GatedDelta {
        norm: Norm { w: zeros(1, 64), eps: 1e-6 },
        projections: gpu.linear(&[&weight(1, 64, 64)]).unwrap(),
        layout: GdnLayout::Split,
        shape,
        vectors: GdnVectors { conv: zeros(channels, 4), a_log: zeros(1, 32), dt_bias: zeros(1, 32) },
        out_norm: Norm { w: zeros(1, 128), eps: 1e-6 },
        out: gpu.linear(&[&weight(1, 64, 64)]).unwrap(),
    };
    let count = if software { 1 } else { 40 };
    for together in if software { vec![1] } else { vec![1, 4, 16, 64] } {
        let layers = vec![LayerShape::Recurrent(shape); count];
        let (mut pool, slots) = sequences(gpu, &layers, together, 0);
        let batch = step(gpu, &mut pool, &slots, 1);
        let stride = 2 * channels;
        let x = zeros(together, stride).buffer().clone();
        let gates = [channels, channels + 64].map(|at| x.behind(4 * at as u64));
        let z = zeros(together, shape.value_total());
        let inputs = DeltaInputs { qkv: x, stride, gates, gate_stride: stride, z };
        gpu.recorder.submit();
        let slabs = RefCell::new(pool.slabs_mut());
        let time = seconds(gpu, 100, |i| {
            let mut slabs = slabs.borrow_mut();
            let y = gpu.tensor(together, shape.value_total()).unwrap();
            let slab = slabs.recurrent_mut(i % count).unwrap();
            assert!(gpu.gdn_step(&inputs, &weights, &batch, slab, &y));
        });
        let name = format!("a step of Gated DeltaNet, {together} sequences, 32 states of 128 x 128");
        told(&name, (together * 8 * shape.state_len()) as f64, time);
    }

    let scores = Scores { heads: 16, scale: 0.06, window: None, soft_cap: None };
    let contexts = if software { vec![128] } else { vec![128, 512, 2048, 16384] };
    let sizes = contexts.iter().flat_map(|context| [(1, *context), (64, *context)]);
    for ((together, context), float) in
        sizes.flat_map(|size| [(size, CacheFloat::F16), (size, CacheFloat::Q8)])
    {
        let kv = KvShape { heads: 2, key_dim: 256, value_dim: 256, float, window: None };
        let (mut pool, slots) = sequences(gpu, &[LayerShape::Kv(kv)], together, context - 1);
        let batch = step(gpu, &mut pool, &slots, 1);
        let q = zeros(together, 16 * 256);
        gpu.recorder.submit();
        let time = seconds(gpu, 100, |_| {
            gpu.sdpa(&q, &batch, pool.slabs(), 0, &scores).unwrap();
        });
        let name = format!("attention of {together} over {context}, {float:?}");
        told(&name, (together * context * kv.token_bytes()) as f64, time);
    }
}

/// Heads and attention of one token, from projections to what goes into the product behind it; over and over, and in turn with a product
/// that reads 14 MB, less what that takes alone.
fn cores(gpu: &Gpu, software: bool) {
    if software {
        return;
    }
    let values = |n: usize| -> Vec<f32> { (0..n).map(|i| ((i * i) as f32 * 0.7).sin()).collect() };
    let tensor = |cols: usize| gpu.upload(1, cols, &values(cols)).unwrap();
    let rope = |dim: usize| {
        let inv_freq = (0..dim / 2).map(|i| 1.0 / 10_000f64.powf(2.0 * i as f64 / dim as f64)).collect();
        gpu.rope_table(&RopeSpec { inv_freq, pairing: Pairing::Halves, factor: 1.0 }).unwrap()
    };
    let x = tensor(2048);
    let others: Vec<_> = (0..24).map(|_| gpu.linear(&[&weight(1, 12_416, 2048)]).unwrap()).collect();
    gpu.recorder.submit();
    let other = |i: usize| {
        let input = Prologue::Norm(&x, NormRef { w: &x, eps: 1e-6 });
        gpu.rounded_product(&input, others[i % 24].stack(), 0..12_416, &Besides::default()).unwrap();
    };
    let product = seconds(gpu, 100, other);
    let measure = |name: &str, position: usize, core: &dyn Fn()| {
        let alone = seconds(gpu, 100, |_| core());
        let in_turn = seconds(gpu, 100, |i| {
            other(i);
            core();
        });
        println!(
            "{name} at position {position}: {:.1} us, in turn {:.1}",
            alone * 1e6,
            (in_turn - product) * 1e6
        );
    };
    // Query heads, key heads, width, whether gated.
    let shapes =
        [("qwen", 16, 2, 256, true), ("gemma", 16, 8, 256, false), ("gemma, global", 16, 2, 512, false)];
    for ((name, heads, key_heads, width, gated), position) in shapes
        .into_iter()
        .flat_map(|shape| [0, 63, 127, 191, 255, 511, 1023].map(|position| (shape, position)))
    {
        let query = heads * width * if gated { 2 } else { 1 };
        let all = tensor(query + 2 * key_heads * width);
        let [k_at, v_at] = [query, query + key_heads * width];
        let projected = Projected { x: all, q_cols: query, k_at, v_at };
        let norm = |width: usize| Norm { w: tensor(width), eps: 1e-6 };
        let weights = Attention {
            norm: norm(64),
            projections: gpu.linear(&[&weight(1, 64, 64)]).unwrap(),
            q_norm: norm(width),
            key_values: Some(KeyValues { heads: key_heads, k_norm: norm(width), norm_values: false }),
            rope: rope(64),
            out: gpu.linear(&[&weight(1, 64, 64)]).unwrap(),
            residual: Residual::Plain,
            heads,
            gated,
            scale: 0.06,
            window: None,
            soft_cap: None,
        };
        let shape = KvShape {
            heads: key_heads,
            key_dim: width,
            value_dim: width,
            float: CacheFloat::F16,
            window: None,
        };
        let (mut pool, slots) = sequences(gpu, &[LayerShape::Kv(shape)], 1, position);
        let batch = step(gpu, &mut pool, &slots, 1);
        gpu.recorder.submit();
        let cached = Cached::of(pool.slabs(), 0, &batch).unwrap();
        measure(name, position, &|| {
            gpu.attention_step(&projected, &weights, &cached, true).unwrap();
        });
    }
    let (heads, rank, nope, pe) = (16, 512, 128, 64);
    let q = tensor(heads * (nope + pe));
    let kv = tensor(rank + pe);
    let norm = |width: usize| Norm { w: tensor(width), eps: 1e-6 };
    let weights = LatentAttention {
        norm: norm(64),
        projections: gpu.linear(&[&weight(1, 64, 64)]).unwrap(),
        query: None,
        latent_norm: norm(rank),
        rope: rope(pe),
        nope,
        embed_q: gpu.head_matrices(&weight(heads, rank, nope), false).unwrap(),
        unembed_out: gpu.head_matrices(&weight(heads, 128, rank), false).unwrap(),
        out: gpu.linear(&[&weight(1, 64, 64)]).unwrap(),
        heads,
        scale: 0.06,
    };
    for position in [0, 63, 127, 255, 511, 1023] {
        let shape =
            KvShape { heads: 1, key_dim: rank + pe, value_dim: 0, float: CacheFloat::F16, window: None };
        let (mut pool, slots) = sequences(gpu, &[LayerShape::Kv(shape)], 1, position);
        let batch = step(gpu, &mut pool, &slots, 1);
        gpu.recorder.submit();
        let cached = Cached::of(pool.slabs(), 0, &batch).unwrap();
        measure("deepseek-mini, two dispatches,", position, &|| {
            gpu.latent_heads([&q, &kv], &weights, &cached).unwrap().unwrap();
        });
    }
}

/// What a prompt's tokens take together: products, experts, attention.
fn prompts(gpu: &Gpu, software: bool) {
    let n = if software { 32 } else { 2048 };
    let told = |what: &str, multiplications: f64, time: f64| {
        println!(
            "{what}, {n} tokens: {:.0} us, {:.1} TFLOPS",
            time * 1e6,
            2.0 * multiplications / time / 1e12
        );
    };
    let values = |rows: usize, cols: usize| {
        let values: Vec<f32> = (0..rows * cols).map(|i| (i as f32 * 0.7).sin()).collect();
        gpu.upload(rows, cols, &values).unwrap()
    };
    for (rows, cols) in [(12416, 2048), (2048, 4096), (8192, 2048), (512, 2048)] {
        let matrix = gpu.linear(&[&weight(1, rows, cols)]).unwrap();
        let x = values(n, cols);
        let time = seconds(gpu, 5, |_| {
            gpu.matmuls(&x, &matrix).unwrap();
        });
        told(&format!("product [{rows}, {cols}]"), (n * rows * cols) as f64, time);
    }
    let (count, hidden, width, top_k) = if software { (32, 256, 64, 4) } else { (256, 2048, 512, 8) };
    let [up, down] = [weight(count, width, hidden), weight(count, hidden, width)];
    let experts = gpu.expert_weights([&up, &up, &down], None).unwrap();
    let logits: Vec<f32> = (0..n * count).map(|i| ((i * 7919 % 10_007) as f32 * 0.37).sin()).collect();
    let routing = Routing::Softmax { top_k, renormalise: true };
    let routes = gpu.route(&gpu.upload(n, count, &logits).unwrap(), &routing).unwrap();
    let x = values(n, hidden);
    let time = seconds(gpu, 5, |_| {
        gpu.experts(&x, &routes, &experts, Activation::Silu).unwrap();
    });
    told(&format!("{top_k} experts of {count}"), (n * top_k * 3 * hidden * width) as f64, time);

    // Query heads, key heads, channels of keys and values, window.
    let shapes = [
        (16, 2, 256, 256, None),
        (16, 8, 256, 256, Some(1024)),
        (16, 2, 512, 512, None),
        (16, 1, 576, 512, None),
    ];
    for (heads, key_heads, key_dim, value_dim, window) in shapes {
        let kv = KvShape { heads: key_heads, key_dim, value_dim, float: CacheFloat::F16, window };
        let scores = Scores { heads, scale: 0.06, window, soft_cap: None };
        let q = values(n, heads * key_dim);
        let (mut pool, slots) = sequences(gpu, &[LayerShape::Kv(kv)], 1, 0);
        let batch = step(gpu, &mut pool, &slots, n);
        let [k, v] = [key_dim, value_dim].map(|width| values(n, key_heads * width));
        gpu.kv_append(&k, &v, &batch, pool.slabs_mut(), 0).unwrap();
        let time = seconds(gpu, 5, |_| {
            gpu.sdpa(&q, &batch, pool.slabs(), 0, &scores).unwrap();
        });
        let seen =
            window.map_or(n / 2, |window| if n > window { window * (n - window / 2) / n } else { n / 2 });
        let multiplications = (n * heads * seen * (key_dim + value_dim)) as f64;
        told(&format!("attention, {heads} heads of {key_dim} and {value_dim}"), multiplications, time);
    }
}
