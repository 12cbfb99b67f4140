//! Attention in whole numbers: rows are rounded to 16 bits with one scale, and products take two numbers at a time.
//!
//! A row that is stored is of halves first, so that its image in a file is exact, and then of whole numbers times a power of two:
//! none beyond 2^14, and with a norm below 2^16. A query is rounded to a norm of at most 2^15. So no sum of some of their
//! products reaches 2^31, however wide they are, by Cauchy and Schwarz. Weights of a block of positions are rounded so that their sum
//! stays below 2^17: with numbers of a value, neither do theirs.

use super::dense::{self, RowsMut, Size};
use super::softmax::BLOCK;
use super::transpose::transpose;
use crate::kernels::Set;
#[cfg(target_arch = "x86_64")]
use crate::kernels::{avx2, avx512};
use crate::vector::{LANES, Lanes, max_lanes, sum_lanes, vectorised};

/// Two numbers that are multiplied with two others and added.
pub(crate) type Pair = [i16; 2];

/// Rows of pairs, and the distance between them.
pub(crate) type Pairs<'a> = (&'a [Pair], usize);

/// Stored numbers, and the scale of each position.
#[derive(Clone, Copy)]
pub(crate) struct Whole<'a> {
    pub numbers: &'a [i16],
    pub scales: &'a [f32],
}

/// The largest number of a stored row, and the square of its norm, which must be less; by so much that rounding its sum does no harm.
const LARGEST: f32 = 16384.0;
const SQUARES: f32 = (u32::MAX - (1 << 16)) as f32;

/// The largest sum of rounded weights, with room for rounding up.
const WEIGHTS: f32 = ((1 << 17) - BLOCK) as f32;

/// Added and taken off again, it rounds floats up to 2^22 to whole numbers, which are then its lowest bits.
const ROUND: f32 = 12_582_912.0;

/// The whole number next to `x`, up to 2^22.
#[inline(always)]
pub(crate) fn whole(x: f32) -> i32 {
    (x + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32
}

/// Rounds a row of halves to the numbers that are kept, and returns their scale. Rounded once more, the result stays as it is. Of
/// what is not a number only that is kept.
pub(crate) fn round_row(row: &[f32], numbers: &mut [i16]) -> f32 {
    // Sums of squares times a power of four: none of them is rounded otherwise than the others.
    let squares = round_with(1.0, row, numbers, |v| v).squares;
    if squares == 0.0 || !squares.is_finite() {
        numbers.fill(0);
        return if squares == 0.0 { 0.0 } else { f32::NAN };
    }
    // With it the norm is from 2^15 to 2^16, before numbers are rounded.
    let mut exponent = ((squares.to_bits() >> 23) as i32 - 127).div_euclid(2) - 15;
    loop {
        let mut sizes = round_with(2f32.powi(-exponent), row, numbers, |v| (v + ROUND) - ROUND);
        if sizes.fit() {
            // Rounded down, they may fit twice as large: as they would be found if rounded once more.
            while sizes.doubled().fit() {
                numbers.iter_mut().for_each(|number| *number *= 2);
                (sizes, exponent) = (sizes.doubled(), exponent - 1);
            }
            return 2f32.powi(exponent);
        }
        exponent += 1;
    }
}

/// The largest of some numbers, and the sum of their squares.
struct Sizes {
    largest: f32,
    squares: f32,
}

impl Sizes {
    fn fit(&self) -> bool {
        self.largest <= LARGEST && self.squares < SQUARES
    }

    fn doubled(&self) -> Self {
        Self { largest: 2.0 * self.largest, squares: 4.0 * self.squares }
    }
}

/// Writes the whole numbers next to `row` times `factor`, and measures what `round` makes of the latter.
#[inline(always)]
fn round_with(factor: f32, row: &[f32], numbers: &mut [i16], round: impl Fn(f32) -> f32) -> Sizes {
    let (mut largest, mut squares): (Lanes, Lanes) = ([0.0; LANES], [0.0; LANES]);
    for (row, numbers) in row.chunks(LANES).zip(numbers.chunks_mut(LANES)) {
        let mut lanes: Lanes = [0.0; LANES];
        lanes[..row.len()].copy_from_slice(row);
        for i in 0..LANES {
            let v = round(lanes[i] * factor);
            lanes[i] *= factor;
            largest[i] = if v.abs() > largest[i] { v.abs() } else { largest[i] };
            squares[i] += v * v;
        }
        let rounded = lanes.map(|v| whole(v) as i16);
        numbers.copy_from_slice(&rounded[..row.len()]);
    }
    Sizes { largest: max_lanes(largest), squares: sum_lanes(squares) }
}

vectorised! {
    /// Rounds rows of queries to pairs, the last filled up with 0, and their factors.
    pub(crate) fn round_queries<A>(q: &[f32], width: usize, pairs: &mut [Pair], factors: &mut [f32]) {
        // Every number may be rounded up by a half, and the norm itself is rounded.
        let norm = 32_766.0 - (width as f32).sqrt() / 2.0;
        let rows = pairs.chunks_exact_mut(width.div_ceil(2));
        for ((q, pairs), factor) in q.chunks_exact(width).zip(rows).zip(factors) {
            let (blocks, rest) = q.as_chunks::<LANES>();
            let mut squares: Lanes = [0.0; LANES];
            for block in blocks {
                for (sum, q) in squares.iter_mut().zip(block) {
                    *sum = A::fma(*q, *q, *sum);
                }
            }
            let length = (sum_lanes(squares) + rest.iter().map(|q| q * q).sum::<f32>()).sqrt();
            let inverse = if length == 0.0 { 0.0 } else { norm / length };
            *factor = length / norm;
            let numbers = pairs.as_flattened_mut();
            numbers[width..].fill(0);
            for (number, q) in numbers.iter_mut().zip(q) {
                *number = whole(q * inverse) as i16;
            }
        }
    }
}

vectorised! {
    /// Multiplies rows of scores with the scales of their positions.
    pub(crate) fn scale_scores<A>(scores: &mut [f32], scales: &[f32; BLOCK]) {
        for scores in scores.as_chunks_mut::<BLOCK>().0 {
            scores.iter_mut().zip(scales).for_each(|(score, scale)| *score *= scale);
        }
    }
}

vectorised! {
    /// Rounds rows of weights, multiplied with the scales of their positions, to pairs and their factors.
    pub(crate) fn round_weights<A>(
        weights: &mut [f32],
        scales: &[f32; BLOCK],
        pairs: &mut [Pair],
        factors: &mut [f32],
    ) {
        let numbers = pairs.as_flattened_mut().as_chunks_mut::<BLOCK>().0;
        for ((weights, numbers), factor) in weights.as_chunks_mut::<BLOCK>().0.iter_mut().zip(numbers).zip(factors) {
            for (weight, scale) in weights.iter_mut().zip(scales) {
                let scaled = *weight * scale;
                // A position that is not seen may hold anything.
                *weight = if *weight == 0.0 { 0.0 } else { scaled };
            }
            let (mut sums, mut tops): (Lanes, Lanes) = ([0.0; LANES], [0.0; LANES]);
            for weights in weights.as_chunks::<LANES>().0 {
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum += weight;
                }
                for (top, weight) in tops.iter_mut().zip(weights) {
                    *top = if *weight > *top { *weight } else { *top };
                }
            }
            let (sum, top) = (sum_lanes(sums), max_lanes(tops));
            // The same as the smaller of two quotients; what is not a number stays none.
            let size = if sum / WEIGHTS < top / 32_767.0 { top / 32_767.0 } else { sum / WEIGHTS };
            // So little is nothing beside the largest weight of all blocks, and its inverse might not be finite.
            let size = if size < 1e-35 { 0.0 } else { size };
            let inverse = if size == 0.0 { 0.0 } else { 1.0 / size };
            *factor = size;
            for (number, weight) in numbers.iter_mut().zip(weights) {
                *number = whole(*weight * inverse) as i16;
            }
        }
    }
}

/// `c[i][j] = factors[i] * sum_l a[i][l] . b[l][j]`, plus the present `c` when `add`. `ahead` is memory that is
/// wanted next: it is asked for little by little, since all at once would be waited for.
#[expect(clippy::too_many_arguments, reason = "a product and its surroundings")]
pub(crate) fn nn(
    set: Set,
    size: Size,
    a: Pairs<'_>,
    factors: &[f32],
    b: Pairs<'_>,
    c: RowsMut<'_>,
    add: bool,
    ahead: &[i16],
) {
    match set {
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => avx512::pairs::nn(size, a, factors, b, c, add, ahead),
        #[cfg(target_arch = "x86_64")]
        Set::Avx2 => avx2::pairs::nn(size, a, factors, b, c, add, ahead),
        _ => {
            let _ = ahead;
            nn_widened(set, size, a, factors, b, c, add);
        }
    }
}

/// Numbers and columns that are widened at a time: they are used while they are in the nearest cache.
const CHUNK: usize = 64;

/// The product in floats, for sets without instructions for pairs: widening once serves all rows.
fn nn_widened(
    set: Set,
    Size { m, n, k }: Size,
    a: Pairs<'_>,
    factors: &[f32],
    b: Pairs<'_>,
    c: RowsMut<'_>,
    add: bool,
) {
    let [mut wide_a, mut wide_b, mut sums] = [[0.0; CHUNK * CHUNK]; 3];
    for i in (0..m).step_by(CHUNK) {
        let rows = CHUNK.min(m - i);
        for j in (0..n).step_by(CHUNK) {
            let columns = CHUNK.min(n - j);
            sums.fill(0.0);
            for l in (0..k).step_by(CHUNK / 2) {
                let terms = (CHUNK / 2).min(k - l);
                for (a, wide) in a.0[i * a.1..].chunks(a.1).zip(wide_a.as_chunks_mut::<CHUNK>().0).take(rows)
                {
                    let numbers = a[l..l + terms].as_flattened();
                    wide.iter_mut().zip(numbers).for_each(|(wide, number)| *wide = f32::from(*number));
                }
                widen_columns(set, (&b.0[l * b.1 + j..], b.1), terms, columns, &mut wide_b);
                let size = Size { m: rows, n: columns, k: 2 * terms };
                dense::nn(set, size, (&wide_a, CHUNK), (&wide_b, CHUNK), (&mut sums, CHUNK), true);
            }
            for ((r, sums), factor) in sums.chunks_exact(CHUNK).enumerate().zip(&factors[i..]).take(rows) {
                let c = &mut c.0[(i + r) * c.1 + j..][..columns];
                c.iter_mut().zip(sums).for_each(|(c, sum)| *c = sum * factor + if add { *c } else { 0.0 });
            }
        }
    }
}

vectorised! {
    /// Two rows of floats for each of so many rows of pairs.
    fn widen_columns<A>(b: Pairs<'_>, rows: usize, columns: usize, wide: &mut [f32]) {
        for (l, wide) in wide.as_chunks_mut::<{ 2 * CHUNK }>().0.iter_mut().enumerate().take(rows) {
            let (even, odd) = wide.split_at_mut(CHUNK);
            for ((even, odd), [x, y]) in even.iter_mut().zip(odd).zip(&b.0[l * b.1..][..columns]) {
                (*even, *odd) = (f32::from(*x), f32::from(*y));
            }
        }
    }
}

/// Turns up to `columns` rows of `width` numbers round: `[pair of channels][row]`, an odd channel beside 0. Where there are no more rows,
/// the panel stays as it is.
pub(crate) fn turn(set: Set, numbers: &[i16], width: usize, panel: &mut [Pair], columns: usize) {
    // SAFETY: every pattern of bits is a number of either kind.
    let (before, words, _) = unsafe { numbers.align_to::<f32>() };
    if width.is_multiple_of(2) && before.is_empty() {
        let (rows, pairs) = (numbers.len() / width, width / 2);
        return transpose(set, rows, pairs, (words, pairs), (floats(panel), columns));
    }
    for (r, row) in numbers.chunks_exact(width).enumerate() {
        for (c, pair) in row.chunks(2).enumerate() {
            panel[c * columns + r] = [pair[0], pair.get(1).copied().unwrap_or(0)];
        }
    }
}

vectorised! {
    /// Puts the first `out.len() / n` numbers of every two rows of `width` side by side, for `n` pairs of rows.
    pub(crate) fn interleave<A>(numbers: &[i16], width: usize, n: usize, out: &mut [Pair]) {
        let columns = out.len() / n;
        for (rows, out) in numbers.chunks_exact(2 * width).zip(out.chunks_exact_mut(columns)) {
            let (even, odd) = (&rows[..columns], &rows[width..][..columns]);
            for ((out, even), odd) in out.iter_mut().zip(even).zip(odd) {
                *out = [*even, *odd];
            }
        }
    }
}

/// The memory of floats, for pairs.
pub(crate) fn pairs(memory: &mut [f32]) -> &mut [Pair] {
    // SAFETY: of the same size, no wider alignment, and every pattern of bits is a value of either kind.
    unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), memory.len()) }
}

/// The memory of pairs, for floats.
fn floats(pairs: &mut [Pair]) -> &mut [f32] {
    // SAFETY: every pattern of bits is a value of either kind.
    let (before, floats, after) = unsafe { pairs.align_to_mut::<f32>() };
    assert!(before.is_empty() && after.is_empty(), "pairs that are not in the memory of floats");
    floats
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between -2 and 2, one of fifty far larger.
    fn floats_of(len: usize, seed: usize) -> Vec<f32> {
        let value = |i: usize| ((i * 7919 + seed * 104_729) % 1013) as f32 / 253.0 - 2.0;
        (0..len).map(|i| value(i) * if i % 50 == seed % 50 { 100.0 } else { 1.0 }).collect()
    }

    fn half(v: f32) -> f32 {
        half::f16::from_f32(v).to_f32()
    }

    /// Rows of every kind: odd widths, outliers, all alike, one alone, the largest and the smallest halves.
    fn rows() -> Vec<Vec<f32>> {
        let mut rows: Vec<Vec<f32>> =
            [1, 2, 33, 128, 256, 576].iter().flat_map(|n| (0..40).map(|i| floats_of(*n, i))).collect();
        for n in [1, 7, 64, 256, 512, 576, 1024] {
            for v in [1.0, -1.5, 0.999, 1e-3, 65504.0, 6e-8, 1e-6] {
                rows.push(vec![v; n]);
                let mut one = vec![0.0; n];
                one[n / 2] = v;
                rows.push(one);
                rows.push((0..n).map(|i| v / (1 + i) as f32).collect());
            }
        }
        rows.iter_mut().flatten().for_each(|v| *v = half(*v));
        rows
    }

    fn norm(numbers: impl IntoIterator<Item = f64>) -> f64 {
        numbers.into_iter().map(|n| n * n).sum::<f64>().sqrt()
    }

    #[test]
    fn stored_rows_are_small_enough_exact_halves_and_stay() {
        for row in rows() {
            let (mut numbers, mut again) = (vec![0; row.len()], vec![0; row.len()]);
            let scale = round_row(&row, &mut numbers);
            let kept: Vec<f32> = numbers.iter().map(|n| f32::from(*n) * scale).collect();
            assert!(numbers.iter().all(|n| n.unsigned_abs() <= 1 << 14), "{row:?}");
            assert!(norm(numbers.iter().map(|n| f64::from(*n))) < 65536.0, "{row:?}");
            assert!(kept.iter().all(|v| half(*v) == *v), "{row:?}");
            let error = norm(row.iter().zip(&kept).map(|(v, k)| f64::from(v - k)));
            let size = norm(row.iter().map(|v| f64::from(*v)));
            // Half a unit for each number, of which the norm has 2^15, or the largest 2^13.
            let largest = row.iter().fold(0.0f32, |m, v| v.abs().max(m));
            let unit = (size / 32768.0).max(f64::from(largest) / 8192.0);
            assert!(error <= unit / 2.0 * (row.len() as f64).sqrt(), "{error} of {size}: {row:?}");
            assert_eq!(round_row(&kept, &mut again), scale, "{row:?}");
            assert_eq!(again, numbers);
        }
        let mut numbers = [1; 3];
        assert_eq!((round_row(&[0.0; 3], &mut numbers), numbers), (0.0, [0; 3]));
        for bad in [f32::NAN, f32::INFINITY] {
            numbers.fill(1);
            assert!(round_row(&[1.0, bad, 2.0], &mut numbers).is_nan() && numbers == [0; 3]);
        }
    }

    #[test]
    fn no_product_of_queries_and_keys_overflows() {
        for set in Set::available() {
            for row in rows() {
                let width = row.len();
                let mut numbers = vec![0; width.next_multiple_of(2)];
                let scale = round_row(&row, &mut numbers[..width]);
                let (mut q, mut factors) = (vec![[7; 2]; width.div_ceil(2)], [0.0]);
                round_queries(set, &row, width, &mut q, &mut factors);
                let mut y = [0.0];
                let size = Size { m: 1, n: 1, k: q.len() };
                nn(set, size, (&q, q.len()), &factors, (numbers.as_chunks().0, 1), (&mut y, 1), false, &[]);
                // The largest that two such rows can give.
                let expected = norm(row.iter().map(|v| f64::from(*v))).powi(2);
                let error = (f64::from(y[0] * scale) - expected).abs() / expected;
                assert!(error < 1e-3, "{set:?}: {} not {expected}: {row:?}", y[0] * scale);
            }
        }
    }

    #[test]
    fn weights_are_rounded_and_their_sums_bounded() {
        let mut cases: Vec<[f32; BLOCK]> = vec![[1.0; BLOCK], [0.0; BLOCK], [1e-36; BLOCK], [1e-20; BLOCK]];
        for seed in 0..20 {
            cases.push(std::array::from_fn(|i| floats_of(BLOCK, seed)[i].abs()));
            cases.push(std::array::from_fn(|i| if i == seed { 1.0 } else { 1e-4 }));
        }
        let scales: [f32; BLOCK] = std::array::from_fn(|i| if i % 5 == 4 { 0.25 } else { 0.5 });
        for set in Set::available() {
            for case in &cases {
                let (mut weights, mut pairs, mut factors) = (*case, [[7; 2]; BLOCK / 2], [9.0]);
                round_weights(set, &mut weights, &scales, &mut pairs, &mut factors);
                let numbers = pairs.as_flattened();
                assert!(numbers.iter().map(|n| i32::from(*n)).sum::<i32>() < 1 << 17, "{set:?}: {case:?}");
                let total: f32 = case.iter().zip(&scales).map(|(w, s)| w * s).sum();
                for ((n, weight), scale) in numbers.iter().zip(case).zip(&scales) {
                    let error = (f32::from(*n) * factors[0] - weight * scale).abs();
                    assert!(*n >= 0 && error <= 2e-5 * total + 1e-34, "{set:?}: off by {error}: {case:?}");
                }
            }
            // What is not seen may be anything; what is seen and is none is none.
            let mut weights: [f32; BLOCK] = std::array::from_fn(|i| if i == 3 { 0.0 } else { 1.0 });
            let mut bad = scales;
            bad[3] = f32::NAN;
            let (mut pairs, mut factors) = ([[7; 2]; BLOCK / 2], [9.0]);
            round_weights(set, &mut weights, &bad, &mut pairs, &mut factors);
            assert!(factors[0].is_finite() && pairs[1][1] == 0);
            weights = [1.0; BLOCK];
            round_weights(set, &mut weights, &bad, &mut pairs, &mut factors);
            assert!(factors[0].is_nan());
        }
    }

    fn numbers(len: usize, seed: usize) -> Vec<Pair> {
        let value = |i: usize| ((i * 7919 + seed * 104_729) % 2049) as i16 - 1024;
        (0..len).map(|i| [value(2 * i), value(2 * i + 1)]).collect()
    }

    #[test]
    fn products_are_right_for_every_set_and_size() {
        // Queries of 1 to 16 heads, and more than a tile; widths of heads, and odd ones; positions that fill no register.
        for m in (1..=16).chain([19, 64]) {
            for (n, k) in [(1, 1), (2, 7), (31, 3), (32, 128), (33, 2), (64, 40), (80, 31), (256, 32), (7, 0)]
            {
                let size = Size { m, n, k };
                let (a, b) = (numbers(m * (k + 3), 1), numbers(k * (n + 2), 2));
                let factors: Vec<f32> = (0..m).map(|i| 0.5 + i as f32).collect();
                for set in Set::available() {
                    for add in [false, true] {
                        let mut c = vec![0.25; m * (n + 1)];
                        let ahead = a.as_flattened();
                        nn(set, size, (&a, k + 3), &factors, (&b, n + 2), (&mut c, n + 1), add, ahead);
                        for (i, row) in c.chunks_exact(n + 1).enumerate() {
                            for j in 0..n {
                                let dot = |l: usize| {
                                    let ([p, q], [x, y]) = (a[i * (k + 3) + l], b[l * (n + 2) + j]);
                                    i32::from(p) * i32::from(x) + i32::from(q) * i32::from(y)
                                };
                                let sum = (0..k).map(dot).sum::<i32>() as f32;
                                let expected =
                                    if add { sum.mul_add(factors[i], 0.25) } else { sum * factors[i] };
                                let error = (row[j] - expected).abs();
                                assert!(
                                    error <= 1e-6 * factors[i] * (1 + k) as f32 * 1024.0 * 1024.0,
                                    "{set:?}: {} not {expected}, row {i} of {m}x{n}x{k}",
                                    row[j]
                                );
                            }
                            assert_eq!(row[n], 0.25, "{set:?}: written beyond a row");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn rows_are_turned_and_interleaved() {
        for set in Set::available() {
            for (rows, width) in [(32usize, 576usize), (2, 40), (31, 26), (5, 33), (32, 7), (1, 1)] {
                let numbers: Vec<i16> = (0..rows * width).map(|i| i as i16).collect();
                let mut memory = vec![0.0; 32 * width.div_ceil(2)];
                let panel = pairs(&mut memory);
                turn(set, &numbers, width, panel, 32);
                for r in 0..rows {
                    for c in 0..width {
                        assert_eq!(panel[c / 2 * 32 + r][c % 2], numbers[r * width + c], "{set:?}");
                    }
                }
                let (columns, n) = (width - width / 3, rows / 2);
                let mut out = vec![[0; 2]; n * columns];
                if n > 0 {
                    interleave(set, &numbers, width, n, &mut out);
                }
                for (i, pair) in out.iter().enumerate() {
                    let at = i / columns * 2 * width + i % columns;
                    assert_eq!(*pair, [numbers[at], numbers[at + width]], "{set:?}");
                }
            }
        }
    }
}
