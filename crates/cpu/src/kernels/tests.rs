//! Every instruction set against the same sums in f64.

use super::codes::{FP4_CODES, Packing, ScaleType};
use super::*;

/// Random bits: splitmix64.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between -1 and 1.
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// A random quantised matrix with its values in f64.
struct Matrix {
    packing: Packing,
    group: usize,
    scale_type: ScaleType,
    rows: usize,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    values: Vec<f64>,
}

impl Matrix {
    fn random(packing: Packing, group: usize, scale_type: ScaleType, (rows, cols): (usize, usize)) -> Self {
        let mut random = Random(packing.bits() as u64 * 1000 + (group + rows * 7 + cols) as u64);
        let bits = packing.bits();
        let codes: Vec<u8> = (0..rows * cols * bits / 8).map(|_| random.bits() as u8).collect();
        let mut plane = |plain: bool| -> Vec<u8> {
            (0..rows * cols / group)
                .flat_map(|_| {
                    let value = random.unit() * if plain { 0.1 } else { 1.0 };
                    match scale_type {
                        ScaleType::Bf16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
                        ScaleType::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
                        ScaleType::F32 => value.to_le_bytes().to_vec(),
                        ScaleType::E8m0 => vec![120 + (random.bits() % 8) as u8],
                    }
                })
                .collect()
        };
        let scales = plane(true);
        let biases = if packing == Packing::Fp4 { Vec::new() } else { plane(false) };
        let mut values = Vec::with_capacity(rows * cols);
        for i in 0..rows * cols {
            // Rows are whole bytes, so the matrix is one stream of bits.
            let code = (0..bits).fold(0, |code, b| {
                let bit = i * bits + b;
                code | (usize::from(codes[bit / 8] >> (bit % 8) & 1) << b)
            });
            let scale = f64::from(scalar::scale(scale_type, &scales, i / group));
            values.push(match packing {
                Packing::Bits(_) => {
                    code as f64 * scale + f64::from(scalar::scale(scale_type, &biases, i / group))
                }
                Packing::Fp4 => (f64::from(FP4_CODES[code]) - 12.0) / 2.0 * scale,
            });
        }
        Self { packing, group, scale_type, rows, cols, codes, scales, biases, values }
    }

    fn codes(&self) -> Codes<'_> {
        let Self { packing, group, scale_type, rows, cols, .. } = *self;
        let (codes, scales, biases) = (&self.codes, &self.scales, &self.biases);
        Codes { packing, group, rows, cols, scale_type, codes, scales, biases }
    }

    /// That `y` is row times token, up to rounding.
    fn check(&self, set: Set, row: usize, x: &[f32], y: f32) {
        let Matrix { packing, group, cols, .. } = *self;
        let (expected, norms) = self.product(row, x);
        assert!(
            (f64::from(y) - expected).abs() <= bound(cols, norms),
            "{set:?} {packing:?} group {group}, {cols} columns, row {row}: {y}, not {expected}"
        );
    }

    /// Row times token, and the product of their norms, by which an error is judged.
    fn product(&self, row: usize, x: &[f32]) -> (f64, f64) {
        let row = &self.values[row * self.cols..][..self.cols];
        let sum = row.iter().zip(x).map(|(w, x)| w * f64::from(*x)).sum();
        let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>().sqrt();
        (sum, norm(&mut row.iter().copied()) * norm(&mut x.iter().map(|x| f64::from(*x))))
    }
}

/// Tokens with outliers: one of every fifty values is fifty times larger.
fn tokens(n: usize, cols: usize) -> Vec<f32> {
    let mut random = Random(n as u64);
    (0..n * cols).map(|_| random.unit() * if random.bits().is_multiple_of(50) { 50.0 } else { 1.0 }).collect()
}

fn rounded(set: Set, form: Form, x: &[f32], cols: usize) -> Rounded {
    let mut rounded = Rounded::new(&Default::default(), form, cols, x.len() / cols);
    // Two at a time, and perhaps one at the end.
    for (part, x) in rounded.parts(2).zip(x.chunks(2 * cols)) {
        part.fill(set, x);
    }
    rounded
}

/// All packings, groups and kinds of scales, with widths that are not whole registers and rows that are not whole panels.
fn matrices() -> Vec<Matrix> {
    let mut all = Vec::new();
    for group in [32, 64, 128] {
        for bits in [1, 2, 3, 4, 5, 6, 8] {
            for shape in [(37, 3 * group), (5, 128), (33, 640)] {
                all.push(Matrix::random(Packing::Bits(bits), group, ScaleType::Bf16, shape));
            }
        }
        for scale in [ScaleType::F16, ScaleType::F32] {
            all.push(Matrix::random(Packing::Bits(4), group, scale, (11, 5 * group)));
        }
    }
    for shape in [(37, 96), (5, 128), (33, 640)] {
        all.push(Matrix::random(Packing::Fp4, 32, ScaleType::E8m0, shape));
    }
    all
}

/// Fifteen bits lose at most `sqrt(cols) / 56,000`; twice that, and something for the sums.
fn bound(cols: usize, norms: f64) -> f64 {
    norms * ((cols as f64).sqrt() / 28_000.0 + 1e-6)
}

#[test]
fn rows_are_right() {
    for matrix in matrices() {
        let codes = matrix.codes();
        let x = tokens(2, matrix.cols);
        for set in Set::available() {
            let rounded = rounded(set, Form::of(&codes, false), &x, matrix.cols);
            for (t, x) in x.chunks_exact(matrix.cols).enumerate() {
                for first in [0, 3] {
                    let mut y = vec![f32::NAN; matrix.rows - first];
                    rows(set, &codes, first, &rounded, t, &mut y, &[]);
                    for (i, y) in y.iter().enumerate() {
                        matrix.check(set, first + i, x, *y);
                    }
                }
            }
        }
    }
}

#[test]
fn panels_are_right() {
    for set in Set::available().into_iter().filter(|set| has_panels(*set)) {
        for matrix in matrices() {
            let codes = matrix.codes();
            let x = tokens(9, matrix.cols);
            let rounded = rounded(set, Form::of(&codes, true), &x, matrix.cols);
            for chosen in [&[8, 0, 3, 3, 1, 5, 7][..], &[2], &[4, 6], &[0, 1, 2, 3, 4, 5, 6, 7, 8]] {
                for first in (0..matrix.rows).step_by(PANEL) {
                    let mut out = vec![[f32::NAN; PANEL]; chosen.len()];
                    panel(set, &codes, first, &mut Panel::default(), &rounded, chosen, &mut out);
                    for (t, out) in chosen.iter().zip(&out) {
                        let x = &x[*t as usize * matrix.cols..][..matrix.cols];
                        for (i, y) in out.iter().enumerate().take(matrix.rows - first) {
                            matrix.check(set, first + i, x, *y);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_not_a_number_stays_none() {
    let matrix = Matrix::random(Packing::Bits(4), 64, ScaleType::Bf16, (4, 128));
    for set in Set::available() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = vec![1.0; 128];
            x[77] = bad;
            let rounded = rounded(set, Form::of(&matrix.codes(), false), &x, 128);
            let mut y = [0.0; 4];
            rows(set, &matrix.codes(), 0, &rounded, 0, &mut y, &[]);
            assert!(y.iter().all(|y| !y.is_finite()), "{set:?} {bad}: {y:?}");
        }
        let zeros = rounded(set, Form::of(&matrix.codes(), false), &[0.0; 128], 128);
        let mut y = [1.0; 4];
        rows(set, &matrix.codes(), 0, &zeros, 0, &mut y, &[]);
        assert_eq!(y, [0.0; 4]);
    }
}
