//! Random weights in every stored format, each with its values decoded independently of the reader under test.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use checkpoint::{
    Bytes, Float, FloatRows, Format, Weight, quantize_affine, quantize_mxfp4, quantize_mxfp8, quantize_nvfp4,
};

use crate::formulas::decode;
use crate::host::{Host, Rows};
use crate::random::Rng;

/// A weight as stored, and what it means.
#[derive(Clone)]
pub struct Sample {
    /// As stored.
    pub weight: Weight,
    /// The values, in f64, of every matrix of the stack.
    pub matrices: Decoded,
    /// The linear layer's bias.
    pub bias: Option<Vec<f64>>,
}

/// Values that are decoded when a formula first asks for them: cases that compare two paths of one
/// backend never do.
pub type Decoded = Arc<LazyLock<Vec<Rows>, Box<dyn FnOnce() -> Vec<Rows> + Send>>>;

/// What kind of weight to make.
#[derive(Clone, Copy)]
pub struct Recipe {
    format: Format,
    count: usize,
    rows: usize,
    cols: usize,
    bias: bool,
    shift: usize,
}

/// Plain floats.
pub const F32: Format = Format::Plain(Float::F32);
/// Plain floats.
pub const F16: Format = Format::Plain(Float::F16);
/// Plain floats.
pub const BF16: Format = Format::Plain(Float::Bf16);
/// What most checkpoints use.
pub const Q4: Format = affine(4, 64, Float::Bf16);

/// An affine format.
pub const fn affine(bits: u32, group: usize, scale: Float) -> Format {
    Format::Affine { bits, group, scale }
}

/// Scales per block, as in DeepSeek's originals, with blocks small enough for small cases.
pub const fn fp8(block_rows: usize, block_cols: usize) -> Format {
    Format::Fp8Blocks { block_rows, block_cols }
}

const FLOATS: [Float; 3] = [Float::F32, Float::F16, Float::Bf16];
const BITS: [u32; 7] = [1, 2, 3, 4, 5, 6, 8];
const GROUPS: [usize; 3] = [32, 64, 128];

/// Every format there is.
pub fn formats() -> Vec<Format> {
    let mut formats: Vec<Format> = FLOATS.map(Format::Plain).to_vec();
    for bits in BITS {
        for group in GROUPS {
            formats.extend(FLOATS.map(|scale| affine(bits, group, scale)));
        }
    }
    formats.extend([Format::Mxfp4, Format::Mxfp8, Format::Nvfp4, fp8(128, 128), fp8(7, 48)]);
    formats
}

/// Whether the format is one of a third of the affine ones in which every two of width, group and
/// scales meet, or not affine.
pub fn in_pairs(format: Format) -> bool {
    let Format::Affine { bits, group, scale } = format else { return true };
    let place = [
        BITS.iter().position(|b| *b == bits),
        GROUPS.iter().position(|g| *g == group),
        FLOATS.iter().position(|f| *f == scale),
    ];
    // The format of most checkpoints is among them.
    place.into_iter().flatten().sum::<usize>() % 3 == 2
}

/// A format in a case's name.
pub fn format_name(format: Format) -> String {
    match format {
        Format::Plain(float) => format!("{float:?}").to_lowercase(),
        Format::Affine { bits, group, scale } => format!("q{bits}g{group}{scale:?}").to_lowercase(),
        Format::Mxfp4 | Format::Mxfp8 | Format::Nvfp4 => format!("{format:?}").to_lowercase(),
        Format::Fp8Blocks { block_rows, block_cols } => format!("fp8 in {block_rows}x{block_cols}"),
    }
}

impl Recipe {
    /// One matrix `[rows, cols]`.
    pub fn new(format: Format, rows: usize, cols: usize) -> Recipe {
        Recipe { format, count: 1, rows, cols, bias: false, shift: 0 }
    }

    /// A stack of `count` matrices.
    pub fn stack(self, count: usize) -> Recipe {
        Recipe { count, ..self }
    }

    /// With the bias of a linear layer.
    pub fn bias(self) -> Recipe {
        Recipe { bias: true, ..self }
    }

    /// Every plane starts at an odd address.
    pub fn unaligned(self) -> Recipe {
        Recipe { shift: 1, ..self }
    }

    /// Random codes under random scales and biases, or random floats.
    pub fn build(self, rng: &mut Rng) -> Sample {
        let Recipe { count, rows, cols, .. } = self;
        let size = 1.0 / (cols as f32).sqrt();
        match self.format {
            Format::Plain(float) => {
                let values: Vec<f32> = (0..count * rows * cols).map(|_| rng.normal() * size).collect();
                self.plain(float, &encode(float, &values), rng)
            }
            Format::Affine { bits, group, scale } => {
                let codes = rng.bytes(count * rows * cols / 8 * bits as usize);
                let steps = (1u32 << bits) as f32;
                let (mut scales, mut biases) = (Vec::new(), Vec::new());
                for _ in 0..count * rows * cols / group {
                    let s = size * rng.uniform(1.0, 6.0) / steps * if rng.below(4) == 0 { -1.0 } else { 1.0 };
                    scales.push(s);
                    biases.push(-s * steps / 2.0 + size * rng.normal());
                }
                self.affine(&codes, &encode(scale, &scales), &encode(scale, &biases), rng)
            }
            Format::Mxfp4 | Format::Mxfp8 | Format::Nvfp4 | Format::Fp8Blocks { .. } => {
                self.small_floats(size, rng)
            }
        }
    }

    /// Random codes under random scales. Codes of 8 bits reach far: the scales that fit them are small.
    fn small_floats(self, size: f32, rng: &mut Rng) -> Sample {
        let Recipe { count, rows, cols, .. } = self;
        let values = count * rows * cols;
        let four = matches!(self.format, Format::Mxfp4 | Format::Nvfp4);
        let mut codes = rng.bytes(if four { values / 2 } else { values });
        let size = size / if four { 3.0 } else { 16.0 };
        if !four {
            // Two codes are not numbers.
            codes.iter_mut().filter(|code| **code & 127 == 127).for_each(|code| *code ^= 0x41);
        }
        match self.format {
            Format::Mxfp4 | Format::Mxfp8 => {
                let middle = 127 + size.log2() as i32;
                let scales: Vec<u8> =
                    (0..values / 32).map(|_| (middle - 2 + rng.below(4) as i32) as u8).collect();
                self.mx(&codes, &scales, rng)
            }
            Format::Nvfp4 => {
                let scales: Vec<u8> = (0..values / 16).map(|_| 48 + rng.below(32) as u8).collect();
                let global = (0..count).map(|_| size * 2688.0 * rng.uniform(0.2, 1.0)).collect();
                self.nv(&codes, &scales, Some(global), rng)
            }
            Format::Fp8Blocks { block_rows, block_cols } => {
                let blocks = count * rows.div_ceil(block_rows) * cols.div_ceil(block_cols);
                let scales: Vec<f32> = (0..blocks).map(|_| size * rng.uniform(0.2, 1.0)).collect();
                self.blocks(&codes, &scales, block_rows, block_cols, rng)
            }
            Format::Plain(_) | Format::Affine { .. } => unreachable!("built elsewhere"),
        }
    }

    /// Random floats with outliers, quantised as a converter does it.
    ///
    /// # Panics
    /// If no converter here writes the format.
    pub fn quantise(self, rng: &mut Rng) -> Sample {
        let size = 1.0 / (self.cols as f32).sqrt();
        let values = rng.values(self.count * self.rows, self.cols).scaled(size).values;
        let (values, cols) = (&values[..], self.cols);
        match self.format {
            Format::Affine { bits, group, scale } => {
                let q = quantize_affine(values, cols, bits, group);
                self.affine(&q.codes, &encode(scale, &q.scales), &encode(scale, &q.biases), rng)
            }
            Format::Mxfp4 => {
                let FloatRows { codes, scales } = quantize_mxfp4(values, cols);
                self.mx(&codes, &scales, rng)
            }
            Format::Mxfp8 => {
                let FloatRows { codes, scales } = quantize_mxfp8(values, cols);
                self.mx(&codes, &scales, rng)
            }
            Format::Nvfp4 => {
                let FloatRows { codes, scales } = quantize_nvfp4(values, cols);
                self.nv(&codes, &scales, None, rng)
            }
            Format::Plain(_) | Format::Fp8Blocks { .. } => panic!("{:?} is not written", self.format),
        }
    }

    /// Whether [`Recipe::quantise`] knows the format.
    pub fn quantisable(self) -> bool {
        !matches!(self.format, Format::Plain(_) | Format::Fp8Blocks { .. })
    }

    fn plain(self, float: Float, data: &[u8], rng: &mut Rng) -> Sample {
        let Recipe { count, rows, cols, .. } = self;
        let weight = Weight::plain("w", count, rows, cols, float, self.bytes(data)).expect("sizes fit");
        let data = data.to_vec();
        let values = move || (0..count * rows * cols).map(|i| decode::float(float, &data, i)).collect();
        self.finish(weight, values, rng)
    }

    fn affine(self, codes: &[u8], scales: &[u8], biases: &[u8], rng: &mut Rng) -> Sample {
        let Recipe { count, rows, cols, .. } = self;
        let Format::Affine { bits, group, scale } = self.format else {
            unreachable!("built from this format")
        };
        let planes = [codes, scales, biases].map(|plane| self.bytes(plane));
        let [data, s, b] = planes;
        let weight =
            Weight::affine("w", count, rows, cols, bits, group, scale, data, s, b).expect("sizes fit");
        let [codes, scales, biases] = [codes, scales, biases].map(<[u8]>::to_vec);
        let values = move || decode::affine(&codes, &scales, &biases, bits as usize, group, scale);
        self.finish(weight, values, rng)
    }

    fn mx(self, codes: &[u8], scales: &[u8], rng: &mut Rng) -> Sample {
        let Recipe { count, rows, cols, .. } = self;
        let four = self.format == Format::Mxfp4;
        let make = if four { Weight::mxfp4 } else { Weight::mxfp8 };
        let weight = make("w".to_owned(), count, rows, cols, self.bytes(codes), self.bytes(scales));
        let [codes, scales] = [codes, scales].map(<[u8]>::to_vec);
        let value = move |i: usize| {
            let code = if four { decode::e2m1(&codes, i) } else { decode::e4m3(codes[i]) };
            code * 2f64.powi(i32::from(scales[i / 32]) - 127)
        };
        let values = move || (0..count * rows * cols).map(value).collect();
        self.finish(weight.expect("sizes fit"), values, rng)
    }

    fn nv(self, codes: &[u8], scales: &[u8], global: Option<Vec<f32>>, rng: &mut Rng) -> Sample {
        let Recipe { count, rows, cols, .. } = self;
        let (data, s) = (self.bytes(codes), self.bytes(scales));
        let weight = Weight::nvfp4("w", count, rows, cols, data, s, global.clone()).expect("sizes fit");
        let [codes, scales] = [codes, scales].map(<[u8]>::to_vec);
        let value = move |i: usize| {
            let factor = global.as_ref().map_or(1.0, |g| f64::from(g[i / (rows * cols)]) / (6.0 * 448.0));
            decode::e2m1(&codes, i) * decode::e4m3(scales[i / 16]) * factor
        };
        let values = move || (0..count * rows * cols).map(value).collect();
        self.finish(weight, values, rng)
    }

    fn blocks(
        self,
        codes: &[u8],
        scales: &[f32],
        block_rows: usize,
        block_cols: usize,
        rng: &mut Rng,
    ) -> Sample {
        let Recipe { count, rows, cols, .. } = self;
        let (data, s) = (self.bytes(codes), self.bytes(&encode(Float::F32, scales)));
        let weight = Weight::fp8_blocks("w", count, rows, cols, block_rows, block_cols, data, s);
        let (down, across) = (rows.div_ceil(block_rows), cols.div_ceil(block_cols));
        let (codes, scales) = (codes.to_vec(), scales.to_vec());
        let value = move |i: usize| {
            let (m, r, c) = (i / (rows * cols), i / cols % rows, i % cols);
            let scale = scales[(m * down + r / block_rows) * across + c / block_cols];
            decode::e4m3(codes[i]) * f64::from(scale)
        };
        let values = move || (0..count * rows * cols).map(value).collect();
        self.finish(weight.expect("sizes fit"), values, rng)
    }

    fn finish(
        self,
        mut weight: Weight,
        values: impl FnOnce() -> Vec<f64> + Send + 'static,
        rng: &mut Rng,
    ) -> Sample {
        let Recipe { rows, cols, .. } = self;
        let matrices = decoded(move || {
            let matrix = |values: &[f64]| values.chunks_exact(cols).map(<[f64]>::to_vec).collect();
            values().chunks_exact(rows * cols).map(matrix).collect()
        });
        if self.bias {
            weight.bias = Some(Host::from_fn(self.count, self.rows, |_, _| rng.normal()).values);
        }
        let bias = weight.bias.as_ref().map(|b| b.iter().map(|v| f64::from(*v)).collect());
        Sample { weight, matrices, bias }
    }

    fn bytes(self, data: &[u8]) -> Bytes {
        let all = [&vec![0xa5; self.shift], data, &vec![0x5a; self.shift]].concat();
        Bytes::from_vec(all).slice(self.shift..self.shift + data.len())
    }
}

impl Sample {
    /// The same rows of every matrix, sharing the bytes: halves of a fused weight.
    pub fn row_range(&self, range: Range<usize>) -> Sample {
        let rows = self.weight.rows;
        let bias = self.bias.as_ref();
        let (whole, part) = (self.matrices.clone(), range.clone());
        Sample {
            weight: self.weight.row_range(range.clone()),
            matrices: decoded(move || whole.iter().map(|m| m[part.clone()].to_vec()).collect()),
            bias: bias.map(|b| b.chunks_exact(rows).flat_map(|b| b[range.clone()].to_vec()).collect()),
        }
    }
}

fn decoded(values: impl FnOnce() -> Vec<Rows> + Send + 'static) -> Decoded {
    Arc::new(LazyLock::new(Box::new(values)))
}

fn encode(float: Float, values: &[f32]) -> Vec<u8> {
    let one = |v: &f32| match float {
        Float::F32 => v.to_le_bytes().to_vec(),
        Float::F16 => half::f16::from_f32(*v).to_le_bytes().to_vec(),
        Float::Bf16 => half::bf16::from_f32(*v).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(one).collect()
}
