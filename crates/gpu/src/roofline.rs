//! How near kernels come to what the device's memory allows. Not part of the tests: run with
//! `cargo test --release -p pleiad-gpu roofline -- --ignored --nocapture`.

use std::time::Instant;

use ::backend::{Backend, Handle};
use checkpoint::{Bytes, Float, Weight};

use crate::ops::folded;
use crate::recorder::Copy;
use crate::shader::{Variant, kernels};
use crate::{Choice, Gpu, Options};

/// Seconds that one of `n` runs takes, the best of five rounds.
fn seconds(gpu: &Gpu, n: usize, run: impl Fn(usize)) -> f64 {
    let wait = || {
        gpu.recorder.submit();
        gpu.device.wgpu.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    };
    (0..n).for_each(&run);
    wait();
    let round = |_| {
        let started = Instant::now();
        (0..n).for_each(&run);
        wait();
        started.elapsed().as_secs_f64() / n as f64
    };
    (0..5).map(round).fold(f64::INFINITY, f64::min)
}

fn weight(rows: usize, cols: usize) -> Weight {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = |n: usize| -> Vec<u8> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..n).map(|_| next()).collect()
    };
    let scale = |n: usize| Float::Bf16.encode(&vec![0.01; n]);
    let groups = rows * cols / 64;
    let codes = bytes(rows * cols / 2);
    let planes = [codes, scale(groups), scale(groups)].map(Bytes::from_vec);
    let [codes, scales, biases] = planes;
    Weight::affine("w", 1, rows, cols, 4, 64, Float::Bf16, codes, scales, biases).unwrap()
}

#[test]
#[ignore = "a measurement"]
fn roofline() {
    let gpu = Gpu::new(&Options { adapter: Choice::Any, ..Options::default() }).unwrap();
    println!("{}", gpu.description());
    let software = gpu.adapter().software;
    let size: u64 = if software { 64 << 20 } else { 1 << 30 };
    let (a, b) = (gpu.pool.fresh("copy", size).unwrap(), gpu.pool.fresh("copy", size).unwrap());
    let copy = seconds(&gpu, 10, |_| gpu.recorder.copy(&a, &b, &[Copy { from: 0, to: 0, len: size }]));
    println!("copy: {:.0} GB/s", 2.0 * size as f64 / copy / 1e9);
    drop((a, b));

    let small = gpu.upload(1, 64, &[1.0; 64]).unwrap();
    let outputs = [gpu.upload(1, 64, &[1.0; 64]).unwrap(), gpu.upload(1, 64, &[1.0; 64]).unwrap()];
    let empty = seconds(&gpu, 1000, |i| {
        let (x, y) = (&outputs[i % 2], &outputs[(i + 1) % 2]);
        let variant = Variant::new(&kernels::SIGMOID_GATE, 128);
        gpu.run_each(&variant, &[x.buffer(), small.buffer(), y.buffer()], &[64], 64);
    });
    println!("a dependent dispatch: {:.2} us", empty * 1e6);

    let started = Instant::now();
    for i in 0..1000 {
        let (x, y) = (&outputs[i % 2], &outputs[(i + 1) % 2]);
        let variant = Variant::new(&kernels::SIGMOID_GATE, 128);
        gpu.run_each(&variant, &[x.buffer(), small.buffer(), y.buffer()], &[64], 64);
    }
    gpu.recorder.submit();
    println!(
        "recording and submitting one: {:.2} us of the host's time",
        started.elapsed().as_secs_f64() * 1e3
    );
    gpu.device.wgpu.poll(wgpu::PollType::wait_indefinitely()).unwrap();

    let shapes: &[(usize, usize)] = if software {
        &[(1024, 2048)]
    } else {
        &[(1024, 2048), (2048, 512), (8192, 2048), (32768, 2048), (131_072, 2048)]
    };
    for &(rows, cols) in shapes {
        let weight = weight(rows, cols);
        let bytes = (rows * cols) as f64 * 4.5 / 8.0;
        // Enough copies that none is still in a cache when its turn comes.
        let copies = ((300e6 / bytes) as usize).clamp(1, 64);
        let matrices: Vec<_> = (0..copies).map(|_| gpu.matrix(&weight).unwrap()).collect();
        let x = gpu.upload(1, cols, &vec![0.5; cols]).unwrap();
        let y = gpu.tensor(1, rows).unwrap();
        gpu.recorder.submit();
        for threads in [32, 64, 128, 256] {
            for per_group in [1, 2, 4, 8] {
                let variant = Variant::new(&kernels::MATVEC, threads)
                    .format(matrices[0].stack.format)
                    .with("ROWS", per_group)
                    .with("ALIGNED", 1)
                    .with("TOKENS", 1);
                if cfg!(debug_assertions) && !variant.declared() {
                    continue;
                }
                let time = seconds(&gpu, 100, |i| {
                    let stack = &matrices[i % copies].stack;
                    let part = &stack.parts[0];
                    let buffers = [&part.codes, &part.scales, x.buffer(), x.buffer(), x.buffer(), y.buffer()];
                    let rest = [rows, 0, x.shape().rows, rows, 0, 0].map(|n| n as u32);
                    let numbers: Vec<u32> = stack.numbers().into_iter().chain(rest).collect();
                    gpu.run(&variant, &buffers, &numbers, folded(rows.div_ceil(per_group as usize)));
                });
                println!(
                    "matvec 4 bits [{rows}, {cols}], {threads} threads, {per_group} rows: {:.1} us, {:.0} GB/s",
                    time * 1e6,
                    bytes / time / 1e9
                );
            }
        }
    }
    gpu.device.check().unwrap();
}
