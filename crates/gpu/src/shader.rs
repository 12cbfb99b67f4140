//! Kernels as text: a file per kernel, put together with the pieces it names and a few constants.
//!
//! Numbers that shape the code (threads, rows of a workgroup) are `const` lines in front; what differs more is a piece that several
//! files offer under the same function names: how a format's codes become numbers, how a workgroup sums. The only
//! preprocessor is [`repeated`]: matrices stay in registers only if each has a name of its own.

use std::fmt::Write;
use std::hash::{Hash, Hasher};

use checkpoint::{Float, Format};

/// A kernel's text and what it takes.
pub(crate) struct Kernel {
    pub name: &'static str,
    text: &'static str,
    pieces: &'static [Piece],
    /// Buffers it reads, which come first, and buffers it writes.
    pub reads: usize,
    pub writes: usize,
    /// Constants beside THREADS, and the values that occur.
    constants: &'static [(&'static str, &'static [u32])],
    /// Values of THREADS that occur.
    pub threads: &'static [u32],
}

impl Kernel {
    /// The values of a constant that occur.
    pub fn values(&self, name: &str) -> &'static [u32] {
        self.constants.iter().find(|(n, _)| *n == name).map_or(&[], |(_, values)| values)
    }

    /// Whether it can wait for the one in front by itself.
    pub fn chains(&self) -> bool {
        self.pieces.contains(&Chain)
    }
}

/// What a kernel is put together from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// A sum over the workgroup.
    Sum,
    /// Sums of several values of each thread.
    Totals,
    /// `1 / rms`
    Rms,
    /// What a norm beside a residual takes.
    Residual,
    /// What a linear layer takes, and what is added to its product.
    Linear,
    /// SiLU or GELU.
    Activation,
    /// Codes of a weight, in its format.
    Codes,
    /// Rows of inputs, eight values at a time.
    Input,
    /// Threads that share rows.
    Lanes,
    /// Four neighbouring threads.
    Quads,
    /// Codes of a weight as whole numbers, in its format.
    WholeCodes,
    /// How values become digits.
    Rounding,
    /// Inputs as digits.
    Rounded,
    /// Inputs that a workgroup rounds for itself.
    RoundedInput,
    /// Inputs of experts, rounded beside the router.
    Digits,
    /// The best experts of one token.
    Choose,
    /// Products of many rows with many inputs.
    Tile,
    /// How values become words of a cache.
    Store,
    /// Rows that are appended to a cache, word by word.
    Words,
    /// Words of a cache.
    Rows,
    /// Four words of a cache at a time.
    Fours,
    /// Rows of a cache that come in with a token.
    NewRows,
    /// Attention of one token.
    Attend,
    /// Heads of one token that turn.
    Turn,
    /// The same of latents.
    LatentTurn,
    /// What a mask lets a token see.
    Seen,
    /// Gates of a Gated DeltaNet.
    Gates,
    /// A causal convolution's inputs.
    Conv,
    /// What the recurrence of a Gated DeltaNet takes.
    Delta,
    /// A chunk of its tokens.
    Chunk,
    /// Which of two candidates comes first.
    Order,
    /// Places of experts.
    Rank,
    /// The best of all threads' candidates.
    Best,
    /// Waiting for the kernel in front.
    Chain,
}

use Piece::*;

/// The kernels.
pub(crate) mod kernels {
    use super::*;

    macro_rules! kernels {
        ($($(#[$doc:meta])* $id:ident = $name:literal, [$($piece:ident),*], $reads:literal => $writes:literal,
            [$($threads:literal),+] $(, $constant:literal in $values:expr)* ;)*) => {
            $($(#[$doc])* pub static $id: Kernel = Kernel {
                name: $name,
                text: include_str!(concat!("shaders/", $name, ".wgsl")),
                pieces: &[$($piece),*],
                reads: $reads,
                writes: $writes,
                threads: &[$($threads),+],
                constants: &[$(($constant, &$values)),*],
            };)*

            /// All of them, for tests.
            #[cfg(test)]
            pub static ALL: &[&Kernel] = &[$(&$id),*];
        };
    }

    kernels! {
        ADD_NORM = "add_norm", [Residual, Sum, Rms], 4 => 2, [64, 256, 1024];
        APPEND = "append", [Store, Words], 2 => 1, [128], "CACHE" in [0, 1, 2];
        ATTENTION = "attention", [Rows, Seen], 4 => 1, [128], "CACHE" in [0, 1, 2], "ROWS" in [1, 2, 4, 8],
            "WORDS" in [1, 2, 4], "QUERY_QUADS" in [512];
        ATTENTION_GROUP = "attention_group", [], 4 => 1, [256], "KEY_SLICES" in [2, 4, 8, 10], "VALUE_SLICES" in [1, 2, 4],
            "MATRICES" in [1];
        ATTENTION_MERGE = "attention_merge", [], 2 => 1, [256];
        ATTENTION_HEADS = "attention_heads", [Chain, Lanes, Store, Fours, NewRows, Attend, Turn, Sum, Rms], 4 => 3, [256, 512], "LANES" in [8],
            "CACHE" in [0, 1, 2], "ROWS" in [1], "KEY_STEPS" in [1, 2, 4, 8, 16], "VALUE_LANES" in [8, 16, 32, 64, 128],
            "QUERY_QUADS" in [1], "EACH" in [1, 2, 4, 8], "SPLIT" in [0, 1];
        ATTENTION_STEP = "attention_step", [Lanes, Fours, Attend], 5 => 1, [256], "LANES" in [8], "CACHE" in [0, 1, 2],
            "ROWS" in [1, 2, 4, 8], "KEY_STEPS" in [1, 2, 4, 8, 9, 16, 18], "VALUE_LANES" in [8, 16, 32, 64, 128],
            "QUERY_QUADS" in [640, 1024];
        ATTENTION_TILES = "attention_tiles", [Seen], 4 => 1, [256], "SLICES" in [1, 2, 4, 8], "MATRICES" in [1];
        COMBINE = "combine", [], 4 => 1, [128];
        COMBINE_NORM = "combine_norm", [Sum, Rms], 4 => 1, [64, 256, 1024];
        COMBINE_NORM_ADD = "combine_norm_add", [Chain, Sum, Rms], 6 => 1, [64, 256, 1024], "LONG" in [0, 1];
        CONV = "conv", [Conv], 3 => 1, [128];
        CONV_STEP = "conv_step", [Conv], 2 => 2, [128];
        CONV_WINDOW = "conv_window", [Conv], 1 => 1, [128];
        EMBED = "embed", [Codes], 3 => 1, [128];
        EXPERT_LISTS = "expert_lists", [], 1 => 2, [64];
        EXPERT_TILES = "expert_tiles", [], 1 => 1, [256];
        EXPERTS_DOWN = "experts_down", [Codes, Input, Totals], 5 => 1, [128], "ROWS" in [4],
            "ALIGNED" in [0, 1];
        EXPERTS_DOWN_ROUNDED = "experts_down_rounded", [Chain, WholeCodes, Totals], 5 => 1,
            [32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 384, 512], "ROWS" in [4], "LONG" in [0, 1];
        EXPERTS_UP_ROUNDED = "experts_up_rounded", [Chain, Lanes, Quads, WholeCodes, Rounding, Rounded, Order, Choose, Sum, Activation],
            5 => 2, [256, 512], "LANES" in [32], "STEPS" in [2, 3, 4], "ROWS" in [2, 4], "KEYS" in [2, 4, 8, 16], "LONG" in [0, 1],
            "BLOCKS" in [1, 2], "ACTIVATION" in [0, 1], "DOWN" in [4, 8];
        EXPERTS_TILED = "experts_tiled", [Codes, Input, Tile, Activation], 6 => 1, [256], "SHARE" in [1, 2, 4, 8],
            "MATRICES" in [0, 1],
            "ACTIVATION" in [0, 1], "GATED" in [0, 1], "ALIGNED" in [0, 1];
        EXPERTS_UP = "experts_up", [Codes, Input, Totals, Activation], 4 => 1, [64], "ROWS" in [4],
            "ACTIVATION" in [0, 1], "GATED" in [0, 1],
            "ALIGNED" in [0, 1];
        GATED_NORM = "gated_norm", [Sum, Rms], 3 => 1, [64, 256, 1024];
        GDN = "gdn", [Delta, Gates], 5 => 2, [128], "ROWS" in [8], "KEYS" in [1, 2, 4, 8, 16, 32], "RAW" in [0, 1];
        GDN_CHUNKS = "gdn_chunks", [Delta, Chunk], 3 => 1, [256];
        GDN_GATES = "gdn_gates", [Gates], 4 => 2, [128];
        GDN_QK_NORM = "gdn_qk_norm", [Sum], 1 => 1, [64, 256, 1024];
        GDN_SCAN = "gdn_scan", [Delta, Chunk], 2 => 2, [128];
        GDN_STEP = "gdn_step", [Chain, Lanes, Gates], 5 => 3, [128], "LANES" in [16], "QUADS" in [1, 2], "TAPS" in [1, 2, 3, 4];
        GLU = "glu", [Activation], 2 => 1, [128], "ACTIVATION" in [0, 1];
        HALVES = "halves", [], 2 => 2, [256], "MATRICES" in [1];
        HEAD_TILES = "head_tiles", [], 0 => 2, [128];
        HEADS = "heads", [Codes, Input, Totals], 3 => 1, [64], "ROWS" in [4], "ALIGNED" in [0, 1];
        HEADS_MERGED = "heads_merged", [Chain, Codes, Totals], 3 => 1, [64, 128], "ROWS" in [4, 8];
        HEADS_STEP = "heads_step", [Store, Words, Turn, Sum, Rms], 4 => 3, [128], "CACHE" in [0, 1, 2], "EACH" in [1, 2, 4, 8];
        HEADS_TURNED = "heads_turned", [Codes], 3 => 1, [64];
        LATENT_HEADS = "latent_heads", [Chain, WholeCodes, Lanes, Quads, Rounding, Store, Fours, Attend, LatentTurn, Sum, Rms], 6 => 2, [256, 512], "LANES" in [8, 16],
            "CACHE" in [0, 1], "ROWS" in [1], "KEY_STEPS" in [1, 2, 4, 5, 9, 18], "VALUE_LANES" in [8, 16, 32, 64, 128],
            "QUERY_QUADS" in [1];
        LATENT_STEP = "latent_step", [Store, Words, LatentTurn, Sum, Rms], 4 => 3, [128], "CACHE" in [0, 1, 2];
        MATMUL = "matmul", [Linear, Codes, Input, Tile], 6 => 1, [256], "SHARE" in [1, 2, 4, 8], "MATRICES" in [0, 1],
            "ALIGNED" in [0, 1];
        MATVEC = "matvec", [Linear, Codes, Input, Totals], 5 => 1, [32, 128, 256], "ROWS" in [4], "TOKENS" in [1, 2, 4, 8],
            "ALIGNED" in [0, 1];
        MATVEC_ROUNDED = "matvec_rounded", [Chain, Lanes, Quads, WholeCodes, Rounding, Rounded, RoundedInput, Sum, Rms, Digits, Activation], 7 => 1, [256, 512],
            "LANES" in [8, 16, 32], "STEPS" in [1, 2, 3, 4, 5, 6], "ROWS" in [1, 2], "AHEAD" in [0, 1], "INPUT" in [0, 1, 2, 3, 4, 5], "LONG" in [0, 1],
            "GATED" in [0, 1], "ACTIVATION" in [0, 1], "DIGITS" in [0, 1];
        NORM_MATVEC = "norm_matvec", [Chain, Codes, Totals, Quads, Rounding, Sum, Rms, Digits], 6 => 1, [256], "ROWS" in [2];
        NORM_ADD = "norm_add", [Residual, Sum, Rms], 4 => 1, [64, 256, 1024];
        PART_OF_HEADS = "part_of_heads", [], 1 => 1, [128];
        RMS_NORM = "rms_norm", [Sum, Rms], 2 => 1, [64, 256, 1024];
        ROPE = "rope", [], 2 => 1, [128];
        ROUTE_GROUPED = "route_grouped", [Order, Rank], 2 => 4, [256];
        ROUTE_SOFTMAX = "route_softmax", [Order, Rank, Sum], 2 => 2, [256];
        SIGMOID_GATE = "sigmoid_gate", [], 2 => 1, [128];
        SOFT_CAP = "soft_cap", [], 1 => 1, [128];
        TOP = "top", [Order, Best], 2 => 2, [256], "AGAIN" in [0, 1];
        WEIGHTED_SUM = "weighted_sum", [], 2 => 1, [128];
    }
}

/// A kernel with its constants: what is compiled.
#[derive(Clone)]
pub(crate) struct Variant {
    pub kernel: &'static Kernel,
    /// Format of its weight, if it has one.
    pub format: Option<Format>,
    pub threads: u32,
    pub constants: Vec<(&'static str, u32)>,
}

impl Variant {
    pub fn new(kernel: &'static Kernel, threads: u32) -> Self {
        Self { kernel, format: None, threads, constants: Vec::new() }
    }

    pub fn with(mut self, name: &'static str, value: u32) -> Self {
        self.constants.push((name, value));
        self
    }

    pub fn format(self, format: Format) -> Self {
        Self { format: Some(format), ..self }
    }

    /// Whether this is one of the variants that tests have seen.
    pub fn declared(&self) -> bool {
        let known = |(name, value): &(&str, u32)| self.kernel.values(name).contains(value);
        self.kernel.threads.contains(&self.threads)
            && self.constants.len() == self.kernel.constants.len()
            && self.constants.iter().all(known)
    }

    fn constant(&self, name: &str) -> Option<u32> {
        self.constants.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
    }

    /// Whether it needs the matrix units of some GPUs.
    fn matrices(&self) -> bool {
        self.constant("MATRICES") == Some(1)
    }

    /// The whole text, for a device whose subgroups have at least so many threads, 0 where there are none, and on which kernels wait for each other or
    /// do not.
    pub fn source(&self, subgroup: u32, chains: bool) -> String {
        let subgroups = subgroup > 0;
        macro_rules! piece {
            ($name:literal) => {
                include_str!(concat!("shaders/", $name, ".wgsl"))
            };
        }
        let mut text = String::new();
        if self.matrices() {
            text.push_str("enable f16;\nenable wgpu_cooperative_matrix;\n");
        }
        let mut number = |name: &str, value: u32| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "const {name}: u32 = {value}u;");
        };
        number("THREADS", self.threads);
        for (name, value) in &self.constants {
            number(name, *value);
        }
        let (bits, group) = match self.format {
            Some(Format::Affine { bits, group, .. }) => (bits, group),
            Some(Format::Mxfp4 | Format::Mxfp8) => (1, 32),
            Some(Format::Nvfp4) => (1, 16),
            Some(Format::Plain(_) | Format::Fp8Blocks { .. }) | None => (1, 1),
        };
        number("BITS", bits);
        number("GROUP", group as u32);
        let _ = writeln!(text, "const MIDDLE: f32 = {}.0;", 1 << (bits - 1));
        text.push_str(if subgroups { piece!("pieces/place_subgroup") } else { piece!("pieces/place_plain") });
        text.push_str(piece!("pieces/prelude"));
        for piece in self.kernel.pieces {
            match piece {
                Sum if subgroups => text.push_str(piece!("pieces/sum_subgroup")),
                Sum => text.push_str(piece!("pieces/sum_shared")),
                Totals if subgroups => text.push_str(piece!("pieces/totals_subgroup")),
                Totals => text.push_str(piece!("pieces/totals_shared")),
                Residual => text.push_str(piece!("pieces/residual")),
                Linear => text.push_str(piece!("pieces/linear")),
                Rms => text.push_str(piece!("pieces/rms")),
                Activation => text.push_str(piece!("pieces/activation")),
                Codes => self
                    .format
                    .iter()
                    .flat_map(|format| codes(*format))
                    .for_each(|piece| text.push_str(piece)),
                Lanes if self.constant("LANES").is_some_and(|lanes| lanes <= subgroup) => {
                    text.push_str(piece!("pieces/lanes_subgroup"));
                }
                Lanes => text.push_str(piece!("pieces/lanes_shared")),
                Quads if subgroups => text.push_str(piece!("pieces/quads_subgroup")),
                Quads => text.push_str(piece!("pieces/quads_shared")),
                WholeCodes => self
                    .format
                    .iter()
                    .flat_map(|format| whole_codes(*format))
                    .for_each(|piece| text.push_str(piece)),
                Rounding => text.push_str(piece!("pieces/rounding")),
                Rounded => text.push_str(piece!("pieces/rounded")),
                RoundedInput => text.push_str(piece!("pieces/rounded_input")),
                Digits => text.push_str(piece!("pieces/digits")),
                Choose if subgroup >= 32 => text.push_str(piece!("pieces/choose_subgroup")),
                Choose => text.push_str(piece!("pieces/choose_shared")),
                // Tiles of matrices have their own.
                Input if self.matrices() => {}
                Input if self.constant("ALIGNED") == Some(1) => text.push_str(piece!("pieces/input_aligned")),
                Input => text.push_str(piece!("pieces/input_ragged")),
                Tile if self.matrices() => text.push_str(piece!("pieces/tile_matrices")),
                Tile => text.push_str(piece!("pieces/tile")),
                Store => text.push_str(match self.constant("CACHE") {
                    Some(2) => piece!("pieces/store_q8"),
                    Some(1) => piece!("pieces/store_f16"),
                    _ => piece!("pieces/store_f32"),
                }),
                Words => text.push_str(match self.constant("CACHE") {
                    Some(2) => piece!("pieces/words_q8"),
                    Some(1) => piece!("pieces/words_f16"),
                    _ => piece!("pieces/words_f32"),
                }),
                Rows => match self.constant("CACHE") {
                    Some(2) => text.push_str(concat!(
                        include_str!("shaders/pieces/codes_q8.wgsl"),
                        include_str!("shaders/pieces/rows_q8.wgsl")
                    )),
                    Some(1) => text.push_str(piece!("pieces/rows_f16")),
                    _ => text.push_str(piece!("pieces/rows_f32")),
                },
                Fours => match self.constant("CACHE") {
                    Some(2) => text.push_str(concat!(
                        include_str!("shaders/pieces/codes_q8.wgsl"),
                        include_str!("shaders/pieces/fours_q8.wgsl")
                    )),
                    Some(1) => text.push_str(piece!("pieces/fours_f16")),
                    _ => text.push_str(piece!("pieces/fours_f32")),
                },
                NewRows if self.constant("CACHE") == Some(2) => text.push_str(piece!("pieces/new_rows_q8")),
                NewRows => text.push_str(piece!("pieces/new_rows")),
                Turn => text.push_str(piece!("pieces/turn")),
                LatentTurn => text.push_str(piece!("pieces/latent_turn")),
                Attend => text.push_str(piece!("pieces/attend")),
                Seen => text.push_str(piece!("pieces/seen")),
                Gates => text.push_str(piece!("pieces/gates")),
                Conv => text.push_str(piece!("pieces/conv")),
                Delta => text.push_str(piece!("pieces/delta")),
                Chunk => text.push_str(piece!("pieces/chunk")),
                Order => text.push_str(piece!("pieces/order")),
                Rank => text.push_str(piece!("pieces/rank")),
                Best => text.push_str(piece!("pieces/best")),
                Chain if chains => text.push_str(piece!("pieces/chain")),
                Chain => text.push_str(piece!("pieces/chain_none")),
            }
        }
        text.push_str(self.kernel.text);
        repeated(&text, |name| self.constant(name))
    }
}

impl PartialEq for Variant {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.kernel, other.kernel)
            && (self.format, self.threads, &self.constants) == (other.format, other.threads, &other.constants)
    }
}

impl Eq for Variant {}

impl Hash for Variant {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.kernel.name, self.format, self.threads, &self.constants).hash(state);
    }
}

/// A text in which lines between `// repeat i < N` and `// end repeat` are there N times, with `#i` from 0 to N - 1. N is a number or one
/// of the constants. On an H200, sums in an array of matrices took three times as long as sums with names.
fn repeated(text: &str, constant: impl Fn(&str) -> Option<u32>) -> String {
    let mut open = vec![(String::new(), 0, String::new())];
    for line in text.lines() {
        if let Some((name, count)) = line.trim().strip_prefix("// repeat ").and_then(|l| l.split_once(" < "))
        {
            let count = constant(count).or_else(|| count.parse().ok());
            open.push((format!("#{name}"), count.expect("a constant or a number"), String::new()));
            continue;
        }
        if line.trim() != "// end repeat" {
            let body = &mut open.last_mut().expect("the text itself").2;
            body.push_str(line);
            body.push('\n');
            continue;
        }
        let (name, count, body) = open.pop().expect("a repetition that ends has begun");
        let outer = &mut open.last_mut().expect("the text itself").2;
        (0..count).for_each(|i| outer.push_str(&body.replace(&name, &i.to_string())));
    }
    open.swap_remove(0).2
}

macro_rules! format_piece {
    ($name:literal) => {
        include_str!(concat!("shaders/formats/", $name, ".wgsl"))
    };
}

/// The piece that reads a scale and a bias.
fn pair_of(scale: Float) -> &'static str {
    match scale {
        Float::Bf16 => format_piece!("scale_bf16_pair"),
        Float::F16 => format_piece!("scale_f16_pair"),
        Float::F32 => format_piece!("scale_f32_pair"),
    }
}

/// Whether codes of a format are multiplied as whole numbers.
pub(crate) fn has_whole_codes(format: Format) -> bool {
    matches!(format, Format::Affine { bits: 4 | 8, .. })
}

/// The pieces that read a format's codes as whole numbers.
fn whole_codes(format: Format) -> [&'static str; 3] {
    let (numbers, scale) = match format {
        Format::Affine { bits: 4, scale, .. } => (format_piece!("rounded4"), pair_of(scale)),
        Format::Affine { scale, .. } => (format_piece!("rounded8"), pair_of(scale)),
        _ => unreachable!("asked before"),
    };
    [format_piece!("rounded"), numbers, scale]
}

/// The pieces that read a format.
fn codes(format: Format) -> [&'static str; 3] {
    let (numbers, scale) = match format {
        Format::Affine { bits, scale, .. } => {
            let numbers = match bits {
                1 => format_piece!("affine1"),
                2 => format_piece!("affine2"),
                4 => format_piece!("affine4"),
                8 => format_piece!("affine8"),
                _ => format_piece!("affine_odd"),
            };
            (numbers, pair_of(scale))
        }
        Format::Mxfp4 => (format_piece!("e2m1"), format_piece!("scale_e8m0")),
        Format::Mxfp8 => (format_piece!("e4m3"), format_piece!("scale_e8m0")),
        Format::Nvfp4 => (format_piece!("e2m1"), format_piece!("scale_f32")),
        Format::Plain(Float::Bf16) => (format_piece!("plain_bf16"), format_piece!("scale_none")),
        Format::Plain(Float::F16) => (format_piece!("plain_f16"), format_piece!("scale_none")),
        // Blocks are decoded when they are uploaded.
        Format::Plain(Float::F32) | Format::Fp8Blocks { .. } => {
            (format_piece!("plain_f32"), format_piece!("scale_none"))
        }
    };
    [format_piece!("codes"), numbers, scale]
}

#[cfg(test)]
mod tests {
    use naga::valid::{Capabilities, ValidationFlags, Validator};

    use super::*;

    fn formats() -> Vec<Format> {
        let floats = [Float::F32, Float::F16, Float::Bf16];
        let affine = [1, 2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| {
            let group = move |group| floats.map(|scale| Format::Affine { bits, group, scale });
            [32, 64, 128].into_iter().flat_map(group)
        });
        let others = [Format::Mxfp4, Format::Mxfp8, Format::Nvfp4];
        affine.chain(others).chain(floats.map(Format::Plain)).collect()
    }

    /// What every GPU that wgpu runs on has, and subgroups.
    const CAPABILITIES: Capabilities = Capabilities::SUBGROUP.union(Capabilities::SHADER_FLOAT16_IN_FLOAT32);
    /// What some have beside that.
    const MATRICES: Capabilities = Capabilities::COOPERATIVE_MATRIX.union(Capabilities::SHADER_FLOAT16);

    /// Every variant that can occur.
    fn variants() -> Vec<Variant> {
        let mut all = Vec::new();
        for kernel in kernels::ALL {
            let formats = if kernel.pieces.contains(&Codes) {
                formats().into_iter().map(Some).collect()
            } else if kernel.pieces.contains(&WholeCodes) {
                // Widths, groups and scales have nothing to do with each other.
                let some = [(4, 64, Float::Bf16), (8, 32, Float::F16)];
                some.map(|(bits, group, scale)| Some(Format::Affine { bits, group, scale })).to_vec()
            } else {
                vec![None]
            };
            let mut these: Vec<Variant> = Vec::new();
            for format in formats {
                these.extend(kernel.threads.iter().map(|t| Variant { format, ..Variant::new(kernel, *t) }));
            }
            for (name, values) in kernel.constants {
                these = these
                    .iter()
                    .flat_map(|v| values.iter().map(|value| v.clone().with(name, *value)))
                    .collect();
            }
            all.extend(these.into_iter().filter(occurs));
        }
        all
    }

    /// Whether a combination of constants makes sense.
    fn occurs(variant: &Variant) -> bool {
        let [gated, activation, rows, input, share] =
            ["GATED", "ACTIVATION", "ROWS", "INPUT", "SHARE"].map(|name| variant.constant(name));
        if share == Some(8) && !variant.matrices() {
            return false;
        }
        // Latents: threads of a row grow with those of a workgroup.
        let latents = variant.kernel.pieces.contains(&LatentTurn) && variant.kernel.pieces.contains(&Attend);
        let [lanes, value_lanes] = ["LANES", "VALUE_LANES"].map(|name| variant.constant(name));
        if latents && (Some(variant.threads / 32) != lanes || value_lanes < lanes) {
            return false;
        }
        if variant.constant("BLOCKS") == Some(2) && variant.constant("LONG") == Some(1) {
            return false;
        }
        // Heads have fewer threads for a row; who asks ahead has all of it.
        let [steps, ahead, long] = ["STEPS", "AHEAD", "LONG"].map(|name| variant.constant(name));
        let fits = match ahead {
            None => true,
            Some(0) => lanes != Some(16) && steps <= Some(4),
            Some(_) => {
                let head = lanes == Some(16) || (lanes, steps) == (Some(8), Some(1));
                let wide = variant.threads == 512 && lanes == Some(32) && steps <= Some(4);
                (head || wide) && (long, gated) == (Some(0), Some(0))
            }
        };
        if !fits {
            return false;
        }
        let rounded = variant.kernel.pieces.contains(&Rounded) && gated.is_some();
        if variant.constant("DIGITS") == Some(1) && (gated, input) != (Some(0), Some(1)) {
            return false;
        }
        !rounded
            || match gated {
                Some(1) => rows != Some(1) && input != Some(2),
                _ => activation == Some(0),
            }
    }

    #[test]
    fn lines_are_repeated_within_repetitions() {
        let text =
            "a\n  // repeat i < 2\n  // repeat j < N\n b#i_#j\n  // end repeat\n c#i\n  // end repeat\nd\n";
        let constant = |name: &str| (name == "N").then_some(3);
        assert_eq!(repeated(text, constant), "a\n b0_0\n b0_1\n b0_2\n c0\n b1_0\n b1_1\n b1_2\n c1\nd\n");
        assert_eq!(repeated("// repeat i < 0\na\n// end repeat\n", constant), "");
    }

    #[test]
    fn every_variant_is_valid_and_becomes_msl_and_spirv() {
        let variants = variants();
        for variant in &variants {
            for subgroup in [0, 4, 32] {
                if variant.matrices() && subgroup == 0 {
                    continue;
                }
                let capabilities = if variant.matrices() { CAPABILITIES | MATRICES } else { CAPABILITIES };
                let source = variant.source(subgroup, subgroup == 32);
                let name = format!("{} {:?} {:?}", variant.kernel.name, variant.format, variant.constants);
                let module = naga::front::wgsl::parse_str(&source)
                    .unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&source)));
                let info = Validator::new(ValidationFlags::all(), capabilities)
                    .validate(&module)
                    .unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&source)));
                let options = naga::back::spv::Options::default();
                naga::back::spv::write_vec(&module, &info, &options, None)
                    .unwrap_or_else(|e| panic!("{name}: {e}"));
                // Metal's matrices are 8 x 8: these kernels are not chosen there.
                if variant.matrices() {
                    continue;
                }
                let options = naga::back::msl::Options {
                    lang_version: (2, 4),
                    fake_missing_bindings: true,
                    ..Default::default()
                };
                naga::back::msl::write_string(&module, &info, &options, &Default::default())
                    .unwrap_or_else(|e| panic!("{name}: {e}"));
            }
        }
        assert!(variants.len() > 500, "{}", variants.len());
    }
}
