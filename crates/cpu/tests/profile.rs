//! The time of operations, where it is asked for.

use backend::pool::{LayerShape, Pool};
use backend::{Activation, Batch, GdnShape, GdnVectors, Ops, Run, Tokens, Weights};
use cpu::{Cpu, Options};

fn cpu(profile: bool) -> Cpu {
    Cpu::new(Options { threads: Some(2), profile, ..Options::default() }).unwrap()
}

/// A few operations.
fn work(b: &Cpu) {
    let shape = GdnShape { key_heads: 1, value_heads: 2, key_dim: 4, value_dim: 4, kernel: 4 };
    let x = b.upload(1, shape.channels(), &vec![0.5; shape.channels()]).unwrap();
    let gate = b.upload(1, 2, &[0.1, 0.2]).unwrap();
    let conv = b.vector(shape.channels(), 4, &vec![0.1; 4 * shape.channels()]).unwrap();
    let vectors = GdnVectors { conv, a_log: gate.clone(), dt_bias: gate.clone() };
    let mut pool = Pool::new(b, &[LayerShape::Recurrent(shape)], 1 << 20).unwrap();
    let slot = pool.create(b).unwrap().unwrap();
    let batch = Batch::new(b, &pool, &[(slot, Tokens::Ids(&[0]))]).unwrap();
    let x = b.conv_causal(&x, &vectors.conv, &batch, pool.slabs_mut(), 0).unwrap();
    let (g, beta) = b.gdn_gates(&gate, &gate, &vectors).unwrap();
    let y = b.gdn(&x, &g, &beta, &batch, pool.slabs_mut(), 0).unwrap();
    let y = b.glu(y.clone(), &y, Activation::Silu).unwrap();
    let y = b.norm_add(&y, &y, &y, 1e-6, 1.0).unwrap();
    b.combine_norm(&y, &y, &y, &y, 1e-6).unwrap();
    b.glu(y.clone(), &y, Activation::Silu).unwrap();
}

#[test]
fn every_operation_counts_once() {
    let b = cpu(true);
    work(&b);
    let calls: Vec<_> = b.take_profile().iter().map(|t| (t.name, t.calls)).collect();
    let once = ["grow", "conv_causal", "gdn_gates", "gdn", "norm_add", "combine_norm"];
    assert!(once.iter().all(|name| calls.contains(&(name, 1))), "{calls:?}");
    assert!(calls.contains(&("glu", 2)) && calls.len() == 7, "{calls:?}");
    assert!(b.take_profile().is_empty(), "taking starts anew");
}

#[test]
fn nothing_is_measured_unasked() {
    let b = cpu(false);
    work(&b);
    assert!(b.take_profile().is_empty());
}
