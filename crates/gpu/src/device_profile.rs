//! What choices of kernels depend on, in one place: limits that an adapter tells, and numbers that
//! suit a kind of device.
//!
//! Only the numbers for NVIDIA were measured, on an H200 (docs/performance.md). The other kinds
//! have the same ones until somebody measures there.

/// Kinds of adapters that are tuned apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    /// NVIDIA's, with NVIDIA's driver.
    Nvidia,
    /// Others with memory of their own.
    Discrete,
    /// Those that share the host's memory.
    Integrated,
    /// Programs on the CPU.
    Software,
}

impl DeviceKind {
    const ALL: [Self; 4] = [Self::Nvidia, Self::Discrete, Self::Integrated, Self::Software];

    pub fn of(info: &wgpu::AdapterInfo, nvidia: bool) -> Self {
        match info.device_type {
            wgpu::DeviceType::Cpu => Self::Software,
            _ if nvidia => Self::Nvidia,
            wgpu::DeviceType::DiscreteGpu | wgpu::DeviceType::VirtualGpu => Self::Discrete,
            wgpu::DeviceType::IntegratedGpu | wgpu::DeviceType::Other => Self::Integrated,
        }
    }
}

/// What an open device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceLimits {
    /// Whether tiles of 16 x 16 halves can be multiplied by whole subgroups of 32, and sums kept in
    /// f32.
    pub matrices: bool,
    /// Whether kernels may wait for each other by themselves.
    pub chains: bool,
    /// Fewest threads of a subgroup; 0 where there are none.
    pub subgroup: u32,
    /// Most threads of a subgroup; 1 where there are none.
    pub largest_subgroup: u32,
    /// Most threads that a workgroup is given.
    pub most_threads: u32,
    /// Bytes of memory that the threads of a workgroup may share.
    pub shared_memory: u32,
}

/// Numbers that choosers of kernels take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DeviceProfile {
    pub limits: DeviceLimits,

    /// Workgroups with tiles that keep the device busy: tiles are made smaller until there are as
    /// many. Twice its processors.
    pub tile_workgroups: usize,
    /// Workgroups of one token's product: rather than more, each takes several blocks of rows,
    /// since preparing the input costs, too. Twice its processors.
    pub product_workgroups: usize,
    /// Rows from which on a product is a model's head, which has many blocks of rows for each
    /// workgroup.
    pub head_rows: usize,
    /// Groups of 32 inputs for which threads of a head's product have room while they ask for
    /// weights ahead: their registers.
    pub head_groups: usize,
    /// Rows from which on threads of one token's product have two rows each.
    pub paired_rows: usize,
    /// Tokens up to which a product goes row by row; beyond, it makes tiles.
    pub row_product_tokens: usize,
    /// Rows of a matrix from which on a subgroup has a row of a row-by-row product, and up to which
    /// a workgroup of 256 has a long one.
    pub narrow_team_rows: usize,
    pub wide_team_rows: usize,
    /// Rows of a workgroup of a product with the heads of latents, behind barriers and in a chain.
    pub latent_out_rows: usize,
    pub latent_out_rows_in_chains: usize,

    /// Workgroups of attention of several tokens: positions are split until there are as many.
    pub attention_workgroups: usize,
    /// The same of a single token, and of a single token over latents.
    pub attention_step_workgroups: usize,
    pub latent_workgroups: usize,
    /// Positions up to which a single token's heads and attention are one dispatch.
    pub few_positions: usize,
    /// Positions up to which single tokens of several sequences do not go through matrix units.
    pub few_positions_each: usize,
    /// The same of latents: positions times heads.
    pub few_latent_positions: usize,

    /// Workgroups of a step of Gated DeltaNet: each takes more rows of a state as long as there are
    /// as many.
    pub delta_workgroups: usize,

    /// Slices up to which a long row's norm has a workgroup of 1024.
    pub few_slices: usize,

    /// Tokens up to which one thread takes all of a channel through a convolution.
    pub convolution_tokens: usize,

    /// Values of a row that a workgroup finds the largest of.
    pub largest_block: usize,
}

/// An H200's, with limits that allow nothing.
const MEASURED: DeviceProfile = DeviceProfile {
    limits: DeviceLimits {
        matrices: false,
        chains: false,
        subgroup: 0,
        largest_subgroup: 1,
        most_threads: 256,
        shared_memory: 16 << 10,
    },
    tile_workgroups: 264,
    product_workgroups: 264,
    head_rows: 32_768,
    head_groups: 96,
    paired_rows: 4096,
    row_product_tokens: 8,
    narrow_team_rows: 16_384,
    wide_team_rows: 4096,
    latent_out_rows: 4,
    latent_out_rows_in_chains: 8,
    attention_workgroups: 512,
    attention_step_workgroups: 128,
    latent_workgroups: 128,
    few_positions: 512,
    few_positions_each: 256,
    few_latent_positions: 16 * 4096,
    delta_workgroups: 1024,
    few_slices: 16,
    convolution_tokens: 4,
    largest_block: 1024,
};

impl DeviceProfile {
    pub fn new(kind: DeviceKind, limits: DeviceLimits) -> Self {
        let table = match kind {
            DeviceKind::Nvidia => MEASURED,
            // Nobody has measured what to change.
            DeviceKind::Discrete | DeviceKind::Integrated | DeviceKind::Software => MEASURED,
        };
        Self { limits, ..table }
    }

    /// Whether workgroups may have 512 threads.
    pub fn has_wide_workgroups(&self) -> bool {
        self.limits.most_threads >= 512
    }

    /// That of a device that can do as little as any, and of one that can do everything.
    pub fn smallest() -> Self {
        Self::of_limits(false, false, 256, 16 << 10)
    }

    pub fn largest() -> Self {
        Self::of_limits(true, true, 1024, 48 << 10)
    }

    fn of_limits(chains: bool, matrices: bool, most_threads: u32, shared_memory: u32) -> Self {
        let (subgroup, largest_subgroup) = (32, 32);
        let limits =
            DeviceLimits { matrices, chains, subgroup, largest_subgroup, most_threads, shared_memory };
        Self::new(DeviceKind::Nvidia, limits)
    }

    /// Profiles between which some chooser may choose differently.
    pub fn every() -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (chains, matrices, most_threads) in [
            (false, false, 256),
            (false, false, 512),
            (false, false, 1024),
            (false, true, 1024),
            (true, false, 256),
            (true, false, 512),
            (true, true, 1024),
        ] {
            let limits = Self::of_limits(chains, matrices, most_threads, 32 << 10).limits;
            for kind in DeviceKind::ALL {
                let profile = Self::new(kind, limits);
                if !all.contains(&profile) {
                    all.push(profile);
                }
            }
        }
        all
    }
}
