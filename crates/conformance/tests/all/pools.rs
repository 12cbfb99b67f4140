//! Random operations on pools of every machine: no sequence ever holds anything but its own tokens.

use conformance::cases::pools::check;
use cpu::{Cpu, Numerics, Options};

use crate::devices::{chained, exact};

#[test]
fn cpu_pools_hold_what_was_written() {
    for (numerics, count) in [(Numerics::Exact, 1000), (Numerics::Fast, 200)] {
        let cpu = Cpu::new(Options { threads: Some(2), numerics, ..Options::default() }).unwrap();
        check(&cpu, "pools", count).unwrap_or_else(|fault| panic!("{numerics:?}: {fault}"));
    }
}

#[test]
fn gpu_pools_hold_what_was_written() {
    for gpu in exact().into_iter().chain(chained()) {
        let count = if gpu.adapter().software { 10 } else { 200 };
        check(&gpu, "pools", count).unwrap_or_else(|fault| panic!("{fault}"));
    }
}
