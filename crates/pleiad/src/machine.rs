//! The machine that runs a model: which one it is, and what commands ask of it.
//!
//! Commands are generic over the machine. [`MachineArgs::engine`] chooses one, [`with_engine`] leads from the choice to the
//! command.

use std::fmt;
use std::time::Duration;

use backend::pool::Layers;
use backend::{Backend, Cache, Run, Weights};
use checkpoint::Checkpoint;
use cpu::{Cpu, Numerics};
use engine::{Caches, DEFAULT_CONTEXT, Engine, EngineOptions, bytes};
#[cfg(feature = "gpu")]
use gpu::Gpu;
use models::{Model, Outline, counted};
use store::{Store, StoreOptions};

use crate::error::Error;
use crate::options::{BackendChoice, MachineArgs, NumericsChoice};
use crate::plan::{self, Plan};
use crate::progress::Progress;
use crate::{gpus, terminal};

/// Models with fewer bytes have answered on the CPU before a GPU is even open.
const SMALL: u64 = 100_000_000;

/// What commands want to know of a backend, beside what models do.
pub trait Machine: Backend {
    /// Bytes that caches may take beside so many bytes of weights; `None` where that is unknown.
    fn cache_memory(&self, weights: u64) -> Option<u64>;

    /// Threads that compute, where it is threads that do.
    fn threads(&self) -> Option<usize>;

    /// How products are rounded when these numerics were asked for.
    fn numerics(&self, asked: NumericsChoice) -> NumericsChoice;

    /// Kernels started so far, where it is kernels that run.
    fn dispatches(&self) -> Option<u64>;

    /// Bytes of weights that have arrived, and of all.
    fn upload_progress(&self) -> (u64, u64);

    /// What experts are read with, where they are read as they are needed.
    fn store(&self) -> Option<&Store> {
        None
    }
}

impl Machine for Cpu {
    fn cache_memory(&self, weights: u64) -> Option<u64> {
        // Weights are pages of a file: they need not fit, but the machine crawls when caches push them out.
        self.free_memory().map(|free| free.saturating_sub(weights).max(free / 4))
    }

    fn threads(&self) -> Option<usize> {
        Some(self.threads())
    }

    fn numerics(&self, asked: NumericsChoice) -> NumericsChoice {
        asked
    }

    fn dispatches(&self) -> Option<u64> {
        None
    }

    fn upload_progress(&self) -> (u64, u64) {
        (0, 0)
    }

    fn store(&self) -> Option<&Store> {
        self.store()
    }
}

/// A machine.
pub enum AnyMachine {
    Cpu(Cpu),
    #[cfg(feature = "gpu")]
    Gpu(Gpu),
}

/// A model on a machine.
#[expect(clippy::large_enum_variant, reason = "there is one")]
pub enum AnyEngine {
    Cpu(Engine<Cpu>),
    #[cfg(feature = "gpu")]
    Gpu(Engine<Gpu>),
}

/// `with_engine!(any, engine => ...)`: the same expression for whatever machine it is.
macro_rules! with_engine {
    ($any:expr, $engine:pat => $body:expr) => {
        match $any {
            $crate::machine::AnyEngine::Cpu($engine) => $body,
            #[cfg(feature = "gpu")]
            $crate::machine::AnyEngine::Gpu($engine) => $body,
        }
    };
}
pub(crate) use with_engine;

/// A GPU without room for a model.
#[derive(Debug, thiserror::Error)]
pub struct NoRoom {
    /// The GPU's name.
    pub gpu: String,
    /// Bytes of the model's weights.
    pub weights: u64,
    /// Bytes needed beside them at least.
    pub beside: u64,
    /// Bytes the GPU has.
    pub free: u64,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpu, weights, beside, free } = self;
        let [weights, beside, free] = [weights, beside, free].map(|n| bytes(*n));
        write!(
            f,
            "the model does not fit on {gpu}: it needs {weights} for weights and {beside} beside them, and {free} are free"
        )
    }
}

/// Where a model is to run.
enum Place {
    Cpu,
    Gpu,
    /// On a GPU if there is one that can, else on the CPU.
    GpuIfPossible,
}

impl MachineArgs {
    fn place(&self, weights: u64) -> Result<Place, Error> {
        let usage = |text: &str| Err(Error::Usage(text.into()));
        match (self.backend, self.gpu) {
            (BackendChoice::Cpu, Some(_)) => {
                usage("--gpu chooses a GPU and --backend cpu none: leave one of them out")
            }
            (BackendChoice::Cpu, None) => Ok(Place::Cpu),
            (BackendChoice::Gpu, _) | (_, Some(_)) if self.kernels.is_some() => usage(
                "--kernels chooses instructions of the CPU, and this is to run on a GPU: leave one of them out",
            ),
            (BackendChoice::Gpu, _) | (_, Some(_)) => Ok(Place::Gpu),
            (BackendChoice::Auto, None) if weights < SMALL || self.kernels.is_some() => Ok(Place::Cpu),
            (BackendChoice::Auto, None) => Ok(Place::GpuIfPossible),
        }
    }

    /// Chooses another backend; what was said about the CPU or a GPU alone is forgotten where it is no longer true.
    pub fn move_to(&mut self, backend: BackendChoice) {
        self.backend = backend;
        match backend {
            BackendChoice::Cpu => self.gpu = None,
            BackendChoice::Gpu => self.kernels = None,
            BackendChoice::Auto => (self.gpu, self.kernels) = (None, None),
        }
    }

    /// The CPU; with `plan`, for a model larger than memory.
    fn cpu(&self, plan: Option<&Plan>) -> Result<Cpu, Error> {
        let numerics = match self.numerics {
            NumericsChoice::Fast => Numerics::Fast,
            NumericsChoice::Exact => Numerics::Exact,
        };
        Ok(Cpu::new(cpu::Options {
            threads: self.threads.map(usize::from),
            numerics,
            kernels: self.kernels,
            profile: self.profile,
            streaming: plan.map(|plan| StoreOptions::new(plan.experts)),
        })?)
    }

    /// The CPU after all. Where there is a GPU, the user hears why it is not that.
    fn cpu_instead(&self, why: &Error) -> Result<Cpu, Error> {
        if !self.quiet && gpus::is_there_a_real_one() {
            match why {
                // Without what to do about it: it is being done.
                Error::NoRoom(why) => eprintln!("[on the CPU: {why}]"),
                why => eprintln!("[on the CPU: {why}]"),
            }
        }
        self.cpu(None)
    }

    /// Opens the machine for a model with so many bytes of weights.
    pub fn machine(&self, weights: u64) -> Result<AnyMachine, Error> {
        match self.place(weights)? {
            Place::Cpu => Ok(AnyMachine::Cpu(self.cpu(None)?)),
            // A model that does not fit is spread.
            Place::Gpu => gpus::open(self),
            Place::GpuIfPossible => gpus::open_with_room(self, weights)
                .or_else(|why| Ok(AnyMachine::Cpu(self.cpu_instead(&why)?))),
        }
    }

    fn options(&self, cache_memory: Option<u64>) -> EngineOptions {
        EngineOptions {
            cache: self.cache_float(),
            chunk: self.chunk,
            context: self.context.map(|n| n as usize),
            cache_memory,
        }
    }

    /// Bytes that caches may take on a machine that holds all weights.
    fn cache_memory(&self, weights: u64, machine: &impl Machine) -> Option<u64> {
        self.memory.map(|budget| budget.saturating_sub(weights)).or_else(|| machine.cache_memory(weights))
    }

    fn load<B: Machine>(
        &self,
        checkpoint: &Checkpoint,
        outline: Outline,
        machine: B,
    ) -> Result<Engine<B>, Error> {
        let options = self.options(self.cache_memory(checkpoint.total_bytes(), &machine));
        Ok(Engine::new(Model::new(outline, machine)?, &options)?)
    }

    /// How the model is spread, if it is larger than the memory of which so much may be used, and the outline of what is loaded:
    /// with the drafting head only where everything fits.
    fn plan(
        &self,
        outline: Outline,
        machine: &impl Cache,
        usable: Option<u64>,
    ) -> Result<(Option<Plan>, Outline), Error> {
        let has_head = outline.spec().has_drafter();
        if has_head && matches!(self.plan_whole(&outline, machine, usable), Ok(None)) {
            return Ok((None, outline));
        }
        let outline = outline.without_drafter();
        Ok((self.plan_whole(&outline, machine, usable)?, outline))
    }

    fn plan_whole(
        &self,
        outline: &Outline,
        machine: &impl Cache,
        usable: Option<u64>,
    ) -> Result<Option<Plan>, Error> {
        let Some(budget) = self.memory.or(usable) else { return Ok(None) };
        let sizes = outline.sizes();
        if budget / 2 > sizes.experts + sizes.others + plan::BESIDE {
            return Ok(None);
        }
        let context = self.context.map(|n| n as usize).or(outline.spec().context).unwrap_or(DEFAULT_CONTEXT);
        let layers = Layers::new(&outline.state_shapes(self.cache_float()));
        let caches = layers.layout(machine, u64::MAX).bytes(context, self.chunk);
        Ok(Plan::new(budget, sizes, caches, self.context.is_some())?)
    }

    fn load_cpu(&self, checkpoint: &Checkpoint, outline: Outline, cpu: Cpu) -> Result<Engine<Cpu>, Error> {
        let (plan, outline) = self.plan(outline, &cpu, cpu.free_memory().map(plan::usable))?;
        let Some(plan) = plan else { return self.load(checkpoint, outline, cpu) };
        drop(cpu);
        self.load_spread(outline, self.cpu(Some(&plan))?, &plan)
    }

    #[cfg(feature = "gpu")]
    fn load_gpu(&self, checkpoint: &Checkpoint, outline: Outline, gpu: Gpu) -> Result<Engine<Gpu>, Error> {
        let (plan, outline) = self.plan(outline, &gpu, gpu.free_memory())?;
        let Some(plan) = plan else {
            gpus::check_room(&gpu, checkpoint.total_bytes())?;
            return self.load(checkpoint, outline, gpu);
        };
        drop(gpu);
        self.load_spread(outline, gpus::open_gpu(self, Some(&plan))?, &plan)
    }

    /// The model on a machine that has been opened for a part of it, without a drafting head: it would take the place of experts
    /// that every token needs.
    fn load_spread<B: Machine>(&self, outline: Outline, machine: B, plan: &Plan) -> Result<Engine<B>, Error> {
        let engine = Engine::new(Model::new(outline, machine)?, &self.options(Some(plan.caches)))?;
        if !self.quiet {
            eprintln!("[{plan}, for a context of {}]", counted(engine.context(), "token"));
        }
        Ok(engine)
    }

    /// Builds the model of an opened folder on the machine that suits it, and checks that the context fits. Weights may
    /// still be on their way: see [`wait_for_weights`].
    pub fn engine(&self, checkpoint: &Checkpoint) -> Result<AnyEngine, Error> {
        let weights = checkpoint.total_bytes();
        let outline = || Outline::open(checkpoint, self.drafting);
        match self.machine(weights)? {
            AnyMachine::Cpu(cpu) => Ok(AnyEngine::Cpu(self.load_cpu(checkpoint, outline()?, cpu)?)),
            #[cfg(feature = "gpu")]
            AnyMachine::Gpu(gpu) => match self.place(weights)? {
                Place::GpuIfPossible => match self.load(checkpoint, outline()?, gpu) {
                    Err(why) if why.is_of_the_machine() => {
                        Ok(AnyEngine::Cpu(self.load_cpu(checkpoint, outline()?, self.cpu_instead(&why)?)?))
                    }
                    engine => Ok(AnyEngine::Gpu(engine?)),
                },
                Place::Cpu | Place::Gpu => Ok(AnyEngine::Gpu(self.load_gpu(checkpoint, outline()?, gpu)?)),
            },
        }
    }

    /// What would run on `machine`, how it would be spread there, if it is larger than memory, and what its sequences would keep.
    pub fn outline(
        &self,
        checkpoint: &Checkpoint,
        machine: &AnyMachine,
    ) -> Result<(Outline, Option<Plan>, Caches), Error> {
        let weights = checkpoint.total_bytes();
        let outline = Outline::open(checkpoint, self.drafting)?;
        let ((plan, outline), cache_memory) = match machine {
            AnyMachine::Cpu(cpu) => {
                let usable = cpu.free_memory().map(plan::usable);
                (self.plan(outline, cpu, usable)?, self.cache_memory(weights, cpu))
            }
            #[cfg(feature = "gpu")]
            AnyMachine::Gpu(gpu) => {
                (self.plan(outline, gpu, gpu.free_memory())?, self.cache_memory(weights, gpu))
            }
        };
        let cache_memory = plan.map(|plan| plan.caches).or(cache_memory).unwrap_or(u64::MAX);
        let options = self.options(Some(cache_memory));
        let shapes = outline.state_shapes(options.cache);
        let layers = Layers::new(&shapes);
        let layout = match machine {
            AnyMachine::Cpu(cpu) => layers.layout(cpu, cache_memory),
            #[cfg(feature = "gpu")]
            AnyMachine::Gpu(gpu) => layers.layout(gpu, cache_memory),
        };
        let caches = Caches::new(layout, outline.spec().context, &options)?;
        Ok((outline, plan, caches))
    }
}

impl AnyMachine {
    /// A line for people, and the bytes that are free on it.
    pub fn describe(&self) -> (String, Option<u64>) {
        match self {
            AnyMachine::Cpu(cpu) => (cpu.description(), cpu.free_memory()),
            #[cfg(feature = "gpu")]
            AnyMachine::Gpu(gpu) => (gpu.description(), gpu.free_memory()),
        }
    }
}

/// Waits until all weights are where they are needed, with a bar on a terminal if that takes a while.
pub fn wait_for_weights(machine: &impl Machine) -> Result<(), Error> {
    /// Short beside anything that follows.
    const PAUSE: Duration = Duration::from_millis(5);
    /// Pauses before there is a bar.
    const PATIENCE: u32 = 40;
    let mut bar = None;
    for pauses in 0.. {
        let (done, total) = machine.upload_progress();
        if done >= total {
            break;
        }
        if terminal::interrupted() {
            return Err(Error::Interrupted);
        }
        if pauses >= PATIENCE {
            bar.get_or_insert_with(|| Progress::upload(total)).set(done);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
