//! The time of operations, where it is asked for.

use backend::{Activation, Backend, Batch, Factor, GdnShape, GdnWeights};
use cpu::{Cpu, Options};

fn cpu(profile: bool) -> Cpu {
    Cpu::new(Options { threads: Some(2), profile, ..Options::default() }).unwrap()
}

/// A few operations, some of which others are made of.
fn work(b: &Cpu) {
    let shape = GdnShape { key_heads: 1, value_heads: 2, key_dim: 4, value_dim: 4, kernel: 4 };
    let x = b.upload(1, shape.channels(), &vec![0.5; shape.channels()]).unwrap();
    let gate = b.upload(1, 2, &[0.1, 0.2]).unwrap();
    let conv = b.upload(shape.channels(), 4, &vec![0.1; 4 * shape.channels()]).unwrap();
    let weights = GdnWeights { shape, conv, a_log: gate.clone(), dt_bias: gate.clone() };
    let mut state = b.recurrent(&shape).unwrap();
    let batch = Batch::new(b, &[(&[0], 0)]).unwrap();
    let y = b.gated_delta(&x, &gate, &gate, &weights, &batch, &mut [&mut state]).unwrap();
    let y = b.glu(y.clone(), &y, Activation::Silu).unwrap();
    let (_, y) = b.add_norm(&y, &y, &y, 1e-6, Factor::One).unwrap();
    b.combine_norm(&y, &y, &y, &y, 1e-6).unwrap();
    b.glu(y.clone(), &y, Activation::Silu).unwrap();
}

#[test]
fn every_operation_counts_once() {
    let b = cpu(true);
    work(&b);
    let calls: Vec<_> = b.take_profile().iter().map(|t| (t.name, t.calls)).collect();
    assert_eq!(calls, [("gated_delta", 1), ("glu", 2), ("add_norm", 1), ("combine_norm", 1)]);
    assert!(b.take_profile().is_empty(), "taking starts anew");
}

#[test]
fn nothing_is_measured_unasked() {
    let b = cpu(false);
    work(&b);
    assert!(b.take_profile().is_empty());
}
