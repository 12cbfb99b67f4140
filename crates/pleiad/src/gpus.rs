//! The GPUs of this computer, for programs built with them.

#[cfg(feature = "gpu")]
mod found {
    use backend::Weights;
    use gpu::{Adapter, Choice, Gpu, Numerics, Options, Streaming, adapters};
    use store::{Store, StoreOptions};

    use crate::error::Error;
    use crate::machine::{AnyMachine, Machine, NoRoom};
    use crate::options::{MachineArgs, NumericsChoice};
    use crate::plan::{self, Plan};

    /// Bytes for activations and for what drivers keep to themselves.
    const ACTIVATIONS: u64 = 256_000_000;
    /// Bytes for caches without which it is not worth beginning.
    const CACHES: u64 = 256_000_000;

    impl Machine for Gpu {
        fn cache_memory(&self, weights: u64) -> Option<u64> {
            self.free_memory().map(|free| free.saturating_sub(weights + ACTIVATIONS))
        }

        fn threads(&self) -> Option<usize> {
            None
        }

        fn numerics(&self, _asked: NumericsChoice) -> NumericsChoice {
            match self.numerics() {
                Numerics::Fast => NumericsChoice::Fast,
                Numerics::Exact => NumericsChoice::Exact,
            }
        }

        fn dispatches(&self) -> Option<u64> {
            Some(self.dispatches())
        }

        fn upload_progress(&self) -> (u64, u64) {
            self.upload_progress()
        }

        fn store(&self) -> Option<&Store> {
            self.store()
        }
    }

    /// Memory of the host for experts on their way to the device, and for as many more as are free there.
    fn store_options(plan: &Plan) -> StoreOptions {
        let free = cpu::free_memory().map_or(0, plan::usable);
        StoreOptions::new(free.min(plan.sizes.experts).max(plan::LEAST_EXPERTS * plan.sizes.expert))
    }

    /// Opens the GPU that was asked for, or the best that is not software; with `plan`, for a model larger than its memory.
    pub fn open_gpu(args: &MachineArgs, plan: Option<&Plan>) -> Result<Gpu, Error> {
        let adapter = args.gpu.map_or(Choice::Real, Choice::Index);
        let numerics = match args.numerics {
            NumericsChoice::Fast => Numerics::Fast,
            NumericsChoice::Exact => Numerics::Exact,
        };
        let streaming = plan.map(|plan| Streaming { part: plan.part(), store: store_options(plan) });
        let (profile, chains) = (args.profile, args.gpu_barriers.then_some(false));
        Ok(Gpu::new(&Options { adapter, numerics, profile, chains, streaming, ..Options::default() })?)
    }

    /// Opens the GPU that was asked for, or the best that is not software.
    pub fn open(args: &MachineArgs) -> Result<AnyMachine, Error> {
        open_gpu(args, None).map(AnyMachine::Gpu)
    }

    /// The same, if so many bytes of weights fit.
    pub fn open_with_room(args: &MachineArgs, weights: u64) -> Result<AnyMachine, Error> {
        let gpu = open_gpu(args, None)?;
        check_room(&gpu, weights)?;
        Ok(AnyMachine::Gpu(gpu))
    }

    /// That so many bytes of weights fit.
    pub fn check_room(gpu: &Gpu, weights: u64) -> Result<(), NoRoom> {
        let beside = ACTIVATIONS + CACHES;
        match gpu.free_memory() {
            Some(free) if free < weights.saturating_add(beside) => {
                Err(NoRoom { gpu: gpu.adapter().name.clone(), weights, beside, free })
            }
            _ => Ok(()),
        }
    }

    /// All of them, each with its number.
    pub fn list() -> Vec<String> {
        adapters().iter().map(Adapter::to_string).collect()
    }

    /// Asks Mesa not to look for a desktop where there is none: it would complain at every enumeration. The order of GPUs,
    /// which a desktop may wish to change, is our own anyway. Call it before anything else.
    pub fn keep_drivers_quiet() {
        let is_set = |name| std::env::var_os(name).is_some();
        if cfg!(target_os = "linux") && !is_set("XDG_RUNTIME_DIR") && !is_set("NODEVICE_SELECT") {
            // SAFETY: no other thread has been started that could read the environment.
            unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
        }
    }

    /// Whether there is one that is not a program on the CPU.
    pub fn is_there_a_real_one() -> bool {
        adapters().iter().any(|adapter| !adapter.software)
    }
}

#[cfg(not(feature = "gpu"))]
mod found {
    use crate::error::Error;
    use crate::machine::AnyMachine;
    use crate::options::MachineArgs;

    /// There is none.
    pub fn open_with_room(args: &MachineArgs, _weights: u64) -> Result<AnyMachine, Error> {
        open(args)
    }

    /// There is none.
    pub fn open(_args: &MachineArgs) -> Result<AnyMachine, Error> {
        Err(Error::Usage(
            "this program was built without GPUs (cargo's feature `gpu`): take --backend cpu".into(),
        ))
    }

    /// There is none.
    pub fn list() -> Vec<String> {
        Vec::new()
    }

    /// There is none.
    pub fn keep_drivers_quiet() {}

    /// There is none.
    pub fn is_there_a_real_one() -> bool {
        false
    }
}

#[cfg(feature = "gpu")]
pub use found::{check_room, open_gpu};
pub use found::{is_there_a_real_one, keep_drivers_quiet, list, open, open_with_room};
