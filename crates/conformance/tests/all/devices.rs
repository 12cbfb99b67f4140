//! GPU devices that tests share, one for each set of options: a kernel is compiled once per device.
//!
//! On software, where compiling a kernel takes half a second, tests run each kernel once and leave
//! combinations to `scripts/check --full`; on a GPU they run everything.

use std::sync::OnceLock;

use backend::Run;
use gpu::{Choice, Gpu, Numerics, Options};

/// Options of any adapter with exact numerics.
pub fn options() -> Options {
    Options { adapter: Choice::Any, numerics: Numerics::Exact, ..Options::default() }
}

/// Opens a device of its own; `None` skips the test.
#[track_caller]
pub fn open(options: &Options) -> Option<Gpu> {
    match Gpu::new(options) {
        Ok(gpu) => {
            println!("{}", gpu.description());
            Some(gpu)
        }
        Err(error) => {
            testing::skipped("gpu", error);
            None
        }
    }
}

/// Exact numerics.
pub fn exact() -> Option<Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    GPU.get_or_init(|| open(&options())).clone()
}

/// Fast numerics with kernels that wait for each other by themselves, as on NVIDIA's GPUs.
pub fn chained() -> Option<Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    GPU.get_or_init(|| open(&Options { numerics: Numerics::Fast, chains: Some(true), ..options() })).clone()
}

/// Fast numerics with barriers between kernels, as on all other GPUs.
pub fn barriers() -> Option<Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    GPU.get_or_init(|| open(&Options { numerics: Numerics::Fast, chains: Some(false), ..options() })).clone()
}

/// Whether every combination runs on this device.
pub fn thorough(gpu: &Gpu) -> bool {
    testing::full() || !gpu.adapter().software
}
