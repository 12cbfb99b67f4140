//! How keys or values lie in a block.
//!
//! A block has [`BLOCK`] positions, all of a head's in one place, the way attention takes them in: a value is a row; keys
//! are transposed in panels of [`PANEL`] positions, `[channel][position]`, so that scores need no sums across lanes. A
//! latent cache, whose keys are values too, keeps its keys as rows.
//!
//! With fast numerics a cache of f16 keeps integers and a scale per row (`ops/pairs.rs`), in pairs: of a key's channels,
//! of a value's positions. Its image is of f16 all the same, and exact. A cache of codes (`ops/q8.rs`) has them as rows,
//! but those of keys, with fast numerics, in the same places; and their scales as `[group][position]`.

use std::ops::Range;

use ::backend::CacheFloat;
use ::backend::pool::BLOCK;
use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::Numerics;
use crate::aligned::{Number, numbers, numbers_mut};
use crate::ops::dense::PANEL;
use crate::ops::pairs::{Whole, round_row};
use crate::ops::q8::{self, Codes, GROUP};
use crate::ops::softmax::{Numbers, Stored};

/// What is kept of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    F32,
    F16,
    /// 16-bit integers with a scale for each row.
    Whole,
    /// 8-bit codes with a scale for each group; and a unit for each row, with fast numerics.
    Codes {
        units: bool,
    },
}

impl Form {
    pub fn new(float: CacheFloat, numerics: Numerics) -> Self {
        match (float, numerics) {
            (CacheFloat::F32, _) => Form::F32,
            (CacheFloat::F16, Numerics::Exact) => Form::F16,
            (CacheFloat::F16, Numerics::Fast) => Form::Whole,
            (CacheFloat::Q8, numerics) => Form::Codes { units: numerics == Numerics::Fast },
        }
    }

    /// Whether attention takes integers.
    pub fn is_whole(self) -> bool {
        matches!(self, Form::Whole | Form::Codes { units: true })
    }

    /// Bytes of a number.
    fn size(self) -> usize {
        match self {
            Form::F32 => 4,
            Form::F16 | Form::Whole => 2,
            Form::Codes { .. } => 1,
        }
    }
}

/// The order of a head's numbers in a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// `[position][channel]`
    Rows,
    /// `[channel][position]` for every [`PANEL`] positions, or `[pair of channels][position]` where `run` is 2.
    Panels { run: usize },
    /// `[pair of positions][channel]`
    Pairs,
}

/// Where a row lies: its first number, how many are neighbours (one, two or all), and the distance from these to the
/// next such.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    run: usize,
    step: usize,
}

impl Place {
    fn places(self, len: usize) -> impl Iterator<Item = usize> {
        let runs = (0..len.div_ceil(self.run)).map(move |i| (self.at + i * self.step, len - i * self.run));
        runs.flat_map(move |(at, left)| at..at + left.min(self.run))
    }

    /// Writes a row to where it belongs.
    fn write<T: Copy>(self, row: &[T], values: &mut [T]) {
        match self.run {
            1 => row.iter().enumerate().for_each(|(i, v)| values[self.at + i * self.step] = *v),
            2 => {
                let (pairs, odd) = row.as_chunks::<2>();
                for (i, pair) in pairs.iter().enumerate() {
                    values[self.at + i * self.step..][..2].copy_from_slice(pair);
                }
                odd.iter().for_each(|v| values[self.at + pairs.len() * self.step] = *v);
            }
            _ => values[self.at..][..row.len()].copy_from_slice(row),
        }
    }
}

/// Rows as attention takes them in.
pub(super) enum Read<'a> {
    Floats(Stored<'a>),
    Numbers(Numbers<'a>),
}

/// Keys, or values, of all heads in a block.
pub(super) struct Rows {
    form: Form,
    order: Order,
    /// Channels of a row.
    channels: usize,
    /// Numbers of a row: whole pairs of channels, where they are in pairs.
    width: usize,
    /// Bytes of the block in which the numbers are, `[head][BLOCK * width]`.
    numbers: Range<usize>,
    /// The scales: `[head][BLOCK]`, or `[head][group][BLOCK]` of codes.
    scales: Range<usize>,
    /// The units, `[head][BLOCK]`.
    units: Range<usize>,
}

impl Rows {
    /// Rows of so many heads that begin at byte `start` of a block.
    pub fn new(form: Form, order: Order, heads: usize, channels: usize, start: usize) -> Self {
        let width = if order == (Order::Panels { run: 2 }) { channels.next_multiple_of(2) } else { channels };
        let rows = heads * BLOCK;
        let scales = match form {
            Form::F32 | Form::F16 => 0,
            Form::Whole => size_of::<f32>(),
            Form::Codes { .. } => channels.div_ceil(GROUP) * size_of::<f16>(),
        };
        let units = if form == (Form::Codes { units: true }) { size_of::<f32>() } else { 0 };
        let numbers = start..start + rows * width * form.size();
        let scales = numbers.end..numbers.end + rows * scales;
        let units = scales.end..scales.end + rows * units;
        Self { form, order, channels, width, numbers, scales, units }
    }

    /// The byte behind them.
    pub fn end(&self) -> usize {
        self.units.end
    }

    /// Whether a row is in one place.
    pub fn are_rows(&self) -> bool {
        self.order == Order::Rows
    }

    /// Groups of a row of codes.
    fn groups(&self) -> usize {
        self.channels.div_ceil(GROUP)
    }

    fn place(&self, head: usize, slot: usize) -> Place {
        let width = self.width;
        let row = head * BLOCK + slot;
        match self.order {
            Order::Rows => Place { at: row * width, run: width, step: width },
            Order::Panels { run } => {
                let panel = (head * BLOCK + slot / PANEL * PANEL) * width;
                Place { at: panel + slot % PANEL * run, run, step: PANEL * run }
            }
            Order::Pairs => Place { at: row / 2 * 2 * width + slot % 2, run: 1, step: 2 },
        }
    }

    /// Where the scales of a row of codes lie.
    fn scale_places(&self, head: usize, slot: usize) -> impl Iterator<Item = usize> {
        let first = head * self.groups();
        (first..first + self.groups()).map(move |g| g * BLOCK + slot)
    }

    /// Writes the row of a head at position `slot` of a block.
    pub fn write(&self, block: &mut [u8], head: usize, slot: usize, row: &[f32]) {
        let place = self.place(head, slot);
        let halves = || {
            let mut halves = vec![f16::ZERO; row.len()];
            halves.convert_from_f32_slice(row);
            halves
        };
        match self.form {
            Form::F32 => place.write(row, part_mut(block, &self.numbers)),
            Form::F16 => place.write(&halves(), part_mut(block, &self.numbers)),
            Form::Whole => {
                let mut rounded = vec![0; row.len()];
                let scale = round_row(&halves().to_f32_vec(), &mut rounded);
                part_mut(block, &self.scales)[head * BLOCK + slot] = scale;
                place.write(&rounded, part_mut::<i16>(block, &self.numbers));
            }
            Form::Codes { .. } => {
                let mut codes = vec![0; row.len()];
                let mut scales = vec![f16::ZERO; self.groups()];
                q8::round_row(row, &mut codes, &mut scales);
                self.write_codes(block, head, slot, &codes, &scales);
            }
        }
    }

    /// Writes a row of codes and its scales.
    fn write_codes(&self, block: &mut [u8], head: usize, slot: usize, codes: &[i8], row_scales: &[f16]) {
        self.place(head, slot).write(codes, part_mut(block, &self.numbers));
        let scales = part_mut(block, &self.scales);
        self.scale_places(head, slot).zip(row_scales).for_each(|(at, scale)| scales[at] = *scale);
        if !self.units.is_empty() {
            part_mut(block, &self.units)[head * BLOCK + slot] = q8::unit(codes, row_scales);
        }
    }

    /// The first `n` rows of a head, and the scales of the block.
    pub fn read<'a>(&self, block: &'a [u8], head: usize, n: usize) -> Read<'a> {
        let first = head * BLOCK;
        let range = first * self.width..(first + n) * self.width;
        match self.form {
            Form::F32 => Read::Floats(Stored::F32(&part(block, &self.numbers)[range])),
            Form::F16 => Read::Floats(Stored::F16(&part(block, &self.numbers)[range])),
            Form::Whole => {
                let scales = &part(block, &self.scales)[first..first + BLOCK];
                Read::Numbers(Numbers::Whole(Whole { numbers: &part(block, &self.numbers)[range], scales }))
            }
            Form::Codes { units } => {
                let groups = self.groups();
                let codes = &part(block, &self.numbers)[range];
                let scales = &part(block, &self.scales)[first * groups..(first + BLOCK) * groups];
                if units {
                    let units = &part(block, &self.units)[first..first + BLOCK];
                    Read::Numbers(Numbers::Codes(Codes { codes, scales, units }))
                } else {
                    Read::Floats(Stored::Codes(Codes { codes, scales, units: &[] }, self.width))
                }
            }
        }
    }

    /// Adds a row to an image.
    pub fn save(&self, block: &[u8], head: usize, slot: usize, out: &mut Vec<u8>) {
        let places = self.place(head, slot).places(self.channels);
        match self.form {
            Form::F32 => {
                let values = part::<f32>(block, &self.numbers);
                places.for_each(|at| out.extend(values[at].to_le_bytes()));
            }
            Form::F16 => {
                let values = part::<f16>(block, &self.numbers);
                places.for_each(|at| out.extend(values[at].to_le_bytes()));
            }
            Form::Whole => {
                let numbers = part::<i16>(block, &self.numbers);
                let scale = part::<f32>(block, &self.scales)[head * BLOCK + slot];
                let half = |at: usize| f16::from_f32(f32::from(numbers[at]) * scale);
                places.for_each(|at| out.extend(half(at).to_le_bytes()));
            }
            Form::Codes { .. } => {
                let (codes, scales) = (part::<i8>(block, &self.numbers), part::<f16>(block, &self.scales));
                places.for_each(|at| out.extend(codes[at].to_le_bytes()));
                self.scale_places(head, slot).for_each(|at| out.extend(scales[at].to_le_bytes()));
            }
        }
    }

    /// Writes a row of an image.
    pub fn load(&self, block: &mut [u8], head: usize, slot: usize, bytes: &[u8]) {
        let row: Vec<f32> = match self.form {
            Form::Codes { .. } => {
                let (codes, scales) = bytes.split_at(self.channels);
                let codes: Vec<i8> = codes.iter().map(|byte| byte.cast_signed()).collect();
                let scales: Vec<f16> = scales.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b)).collect();
                return self.write_codes(block, head, slot, &codes, &scales);
            }
            Form::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Form::F16 | Form::Whole => {
                bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect()
            }
        };
        self.write(block, head, slot, &row);
    }
}

/// A part of a block.
fn part<'a, T: Number>(block: &'a [u8], range: &Range<usize>) -> &'a [T] {
    numbers(&block[range.clone()])
}

/// The same, to be written.
fn part_mut<'a, T: Number>(block: &'a mut [u8], range: &Range<usize>) -> &'a mut [T] {
    numbers_mut(&mut block[range.clone()])
}
