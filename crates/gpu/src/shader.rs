//! Kernels as text: a file per kernel, put together with the pieces it names and a few constants.
//!
//! Numbers that shape the code (threads, rows of a workgroup) are `const` lines in front; what differs more is a piece that several
//! files offer under the same function names: how a format's codes become numbers, how a workgroup sums. The only
//! preprocessor is [`repeated`]: matrices stay in registers only if each has a name of its own.

use std::fmt::Write;

use checkpoint::{Float, Format};

use crate::kernel::{Constant, InputRows, Kind, Variant};

/// What a kernel is put together from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A sum over the workgroup.
    Sum,
    /// Sums of several values of each thread.
    Totals,
    /// `1 / rms`
    Rms,
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
    /// What becomes of the input before it is rounded: nothing, or what each of these names says.
    ProloguePlain,
    PrologueNorm,
    PrologueGatedNorm,
    PrologueNormAdd,
    PrologueSplits,
    PrologueLayerEnd,
    /// A bias and a residual that are added to results, or neither.
    Added,
    AddedNone,
    /// Rounding the input of experts.
    Digits,
    /// Inputs of experts, rounded beside the router, or none.
    DigitsBeside,
    DigitsNone,
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
    /// What a step's sequences are, and their places.
    Steps,
    /// What masks let tokens see, and parts of that.
    Seen,
    /// Formulas of the gates of a Gated DeltaNet.
    Gates,
    /// Gates and keys that are finished, or as they leave their projections.
    GatesReady,
    GatesRaw,
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
    /// How a token is chosen from each row of logits.
    Choices,
    /// The largest logit of a row.
    Largest,
    /// Noise of a draw.
    Noise,
    /// What top-k and top-p leave.
    Likelihoods,
    /// Waiting for the kernel in front.
    Chain,
}

use Piece::*;

macro_rules! piece {
    ($($name:literal),+) => {
        concat!($(include_str!(concat!("shaders/pieces/", $name, ".wgsl"))),+)
    };
}

impl Variant {
    /// The whole text, for a device whose subgroups have at least so many threads, 0 where there are none, and on which kernels wait for each other or
    /// do not.
    pub fn source(&self, subgroup: u32, chains: bool) -> String {
        let mut body = String::from(piece!("prelude"));
        for piece in self.kernel.pieces {
            self.push(*piece, subgroup, chains, &mut body);
        }
        body.push_str(self.kernel.text);
        let mut text = String::new();
        if self.matrices() {
            text.push_str("enable f16;\nenable wgpu_cooperative_matrix;\n");
        }
        let mut number = |name: &str, value: u32| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "const {}: u32 = {value}u;", name.to_uppercase());
        };
        for (name, kind, value) in self.constants() {
            if kind == Kind::Number {
                number(name, value);
            }
        }
        if let Some(format) = self.format {
            let (bits, group) = match format {
                Format::Affine { bits, group, .. } => (bits, group),
                Format::Mxfp4 | Format::Mxfp8 => (1, 32),
                Format::Nvfp4 => (1, 16),
                Format::Plain(_) | Format::Fp8Blocks { .. } => (1, 1),
            };
            number("bits", bits);
            number("group", group as u32);
            let _ = writeln!(text, "const MIDDLE: f32 = {}.0;", 1 << (bits - 1));
        }
        // Who does not look at its subgroup has the same text everywhere.
        let looks = body.contains("place.lane") || body.contains("place.subgroup");
        text.push_str(if subgroup > 0 && looks { piece!("place_subgroup") } else { piece!("place_plain") });
        text.push_str(&body);
        repeated(&text, |name| self.constant(&name.to_lowercase()))
    }

    fn push(&self, piece: Piece, subgroup: u32, chains: bool, text: &mut String) {
        let subgroups = subgroup > 0;
        let (cache, input) = (self.constant("cache"), self.constant("input"));
        let own = match piece {
            Sum if subgroups => piece!("sum_subgroup"),
            Sum => piece!("sum_shared"),
            Totals if subgroups => piece!("totals_subgroup"),
            Totals => piece!("totals_shared"),
            Linear => piece!("linear"),
            Rms => piece!("rms"),
            Activation => piece!("activation"),
            Codes => return self.format.iter().flat_map(|f| codes(*f)).for_each(|p| text.push_str(p)),
            WholeCodes => {
                return self.format.iter().flat_map(|f| whole_codes(*f)).for_each(|p| text.push_str(p));
            }
            Lanes if self.constant("lanes").is_some_and(|lanes| lanes <= subgroup) => {
                piece!("lanes_subgroup")
            }
            Lanes => piece!("lanes_shared"),
            Quads if subgroups => piece!("quads_subgroup"),
            Quads => piece!("quads_shared"),
            Rounding => piece!("rounding"),
            Rounded => piece!("rounded"),
            RoundedInput => piece!("rounded_input"),
            ProloguePlain => piece!("prologue_plain"),
            PrologueNorm => piece!("prologue_norm"),
            PrologueGatedNorm => piece!("prologue_gated_norm"),
            PrologueNormAdd => piece!("prologue_norm_add"),
            PrologueSplits => piece!("prologue_splits"),
            PrologueLayerEnd => piece!("prologue_layer_end"),
            Added => piece!("added"),
            AddedNone => piece!("added_none"),
            Digits => piece!("digits"),
            DigitsBeside => piece!("digits_beside"),
            DigitsNone => piece!("digits_none"),
            Choose if subgroup >= 32 => piece!("choose_subgroup"),
            Choose => piece!("choose_shared"),
            Input if input == Some(InputRows::Aligned.number()) => piece!("input_aligned"),
            Input if input == Some(InputRows::Ragged.number()) => piece!("input_ragged"),
            // Tiles of matrices have their own.
            Input => "",
            Tile if self.matrices() => piece!("tile_matrices"),
            Tile => piece!("tile"),
            Store => of_cache(cache, [piece!("store_f32"), piece!("store_f16"), piece!("store_q8")]),
            Words => of_cache(cache, [piece!("words_f32"), piece!("words_f16"), piece!("words_q8")]),
            Rows => of_cache(cache, [piece!("rows_f32"), piece!("rows_f16"), piece!("codes_q8", "rows_q8")]),
            Fours => {
                of_cache(cache, [piece!("fours_f32"), piece!("fours_f16"), piece!("codes_q8", "fours_q8")])
            }
            NewRows => of_cache(cache, [piece!("new_rows"), piece!("new_rows"), piece!("new_rows_q8")]),
            Turn => piece!("turn"),
            LatentTurn => piece!("latent_turn"),
            Attend => piece!("attend"),
            Steps => piece!("steps"),
            Seen => piece!("seen"),
            Gates => piece!("gates"),
            GatesReady => piece!("gates_ready"),
            GatesRaw => piece!("gates_raw"),
            Conv => piece!("conv"),
            Delta => piece!("delta"),
            Chunk => piece!("chunk"),
            Order => piece!("order"),
            Rank => piece!("rank"),
            Best => piece!("best"),
            Choices => piece!("choices"),
            Largest => piece!("largest"),
            Noise => piece!("noise"),
            Likelihoods => piece!("likelihoods"),
            Chain if chains => piece!("chain"),
            Chain => piece!("chain_none"),
        };
        text.push_str(own);
    }
}

/// The piece for a type of cache.
fn of_cache(cache: Option<u32>, [f32, f16, q8]: [&'static str; 3]) -> &'static str {
    match cache {
        Some(2) => q8,
        Some(1) => f16,
        _ => f32,
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
    use super::*;

    #[test]
    fn lines_are_repeated_within_repetitions() {
        let text =
            "a\n  // repeat i < 2\n  // repeat j < N\n b#i_#j\n  // end repeat\n c#i\n  // end repeat\nd\n";
        let constant = |name: &str| (name == "N").then_some(3);
        assert_eq!(repeated(text, constant), "a\n b0_0\n b0_1\n b0_2\n c0\n b1_0\n b1_1\n b1_2\n c1\nd\n");
        assert_eq!(repeated("// repeat i < 0\na\n// end repeat\n", constant), "");
    }
}
