//! Rows and columns that only move: exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use backend::{Backend, Checked, GdnShape, Handle, Shape};

use super::ensure;
use crate::host::Host;
use crate::{Bound, Case, Output};

/// Rows, heads, width of a head, width of its first part.
const SPLITS: [(usize, usize, usize, usize); 5] =
    [(1, 1, 7, 3), (5, 3, 10, 4), (2, 16, 256, 128), (3, 4, 9, 9), (3, 4, 9, 0)];

/// Rows, columns of the first and of the second.
const JOINS: [(usize, usize, usize); 4] = [(1, 64, 64), (3, 1, 37), (70, 129, 5), (513, 8, 8)];

/// Rows, start, width out of 37 columns.
const COLUMNS: [(usize, usize, usize); 4] = [(1, 0, 37), (4, 36, 1), (4, 5, 17), (3, 0, 8)];

/// Key heads, value heads, key width, value width.
const QKVZ: [(usize, usize, usize, usize); 4] = [(1, 1, 4, 4), (2, 4, 5, 3), (3, 12, 8, 16), (4, 4, 7, 9)];

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let mut cases = vec![
        Case::new("upload", "then read, [3, 5]", Bound::EXACT, |b: &Checked<'_, B>, rng| {
            let x = rng.values(3, 5);
            let tensor = x.on(b)?;
            ensure(tensor.shape() == Shape { rows: 3, cols: 5 }, "the shape is not the one uploaded")?;
            Ok(vec![Output::exact("x", b.read(&tensor)?, x.values)])
        }),
        Case::new("reshape", "[6, 10] to [4, 15]", Bound::EXACT, |b: &Checked<'_, B>, rng| {
            let x = rng.values(6, 10);
            let y = b.reshape(x.on(b)?, 4, 15)?;
            ensure(y.shape() == Shape { rows: 4, cols: 15 }, "the shape is not the one asked for")?;
            Ok(vec![Output::exact("y", b.read(&y)?, x.values)])
        }),
        Case::new(
            "select_rows",
            "repeated and out of order, 5 of [4, 7]",
            Bound::EXACT,
            |b: &Checked<'_, B>, rng| {
                let x = rng.values(4, 7);
                let rows = [3, 0, 0, 2, 3];
                let y = b.read(&b.select_rows(&x.on(b)?, &rows)?)?;
                Ok(vec![Output::exact("y", y, rows.iter().flat_map(|r| x.row(*r).to_vec()).collect())])
            },
        ),
        Case::new(
            "select_rows",
            "none of them, then a product and a norm",
            Bound::EXACT,
            |b: &Checked<'_, B>, rng| {
                // A step that wants no logits: no rows, but no panic either.
                let none = b.select_rows(&rng.values(4, 7).on(b)?, &[])?;
                let w = crate::weights::Recipe::new(crate::weights::F32, 3, 7).build(rng);
                let product = b.matmul(&none, &b.linear(&[&w.weight])?)?;
                let y = b.rms_norm(&product, None, 1e-6)?;
                ensure(y.shape() == Shape { rows: 0, cols: 3 }, "the shape is not [0, 3]")?;
                Ok(vec![Output::exact("y", b.read(&y)?, Vec::new()).flat()])
            },
        ),
        Case::new("select_rows", "does not change its input", Bound::EXACT, |b: &Checked<'_, B>, rng| {
            // An argument taken by value may be overwritten; one that is shared must not be.
            let x = rng.values(3, 8);
            let tensor = x.on(b)?;
            let shared = tensor.clone();
            b.soft_cap(tensor, 1.0)?;
            let y = b.read(&b.select_rows(&shared, &[0, 1, 2])?)?;
            Ok(vec![Output::exact("y", y, x.values)])
        }),
    ];
    cases.extend([0, 1, 2, 1000].map(|count| {
        Case::new("parallel_for", format!("{count} tasks"), Bound::EXACT, move |b: &Checked<'_, B>, _| {
            let calls: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            b.parallel_for(count, &|i| {
                calls[i].fetch_add(1, Ordering::Relaxed);
            });
            ensure(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 1), "not every task ran once")?;
            Ok(Vec::new())
        })
    }));
    cases.push(Case::new("background", "operations go on", Bound::EXACT, |b: &Checked<'_, B>, rng| {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        b.background(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        let x = rng.values(5, 8);
        let y = b.read(&b.select_rows(&x.on(b)?, &[0, 1, 2, 3, 4])?)?;
        ensure(runs.load(Ordering::Relaxed) <= 1, "the task ran twice")?;
        Ok(vec![Output::exact("y", y, x.values)])
    }));
    cases.extend(COLUMNS.map(|(rows, start, width)| {
        Case::new(
            "columns",
            format!("{start} + {width} of [{rows}, 37]"),
            Bound::EXACT,
            move |b: &Checked<'_, B>, rng| {
                let x = rng.values(rows, 37);
                let y = b.read(&b.columns(&x.on(b)?, start, width)?)?;
                let expected = Host::from_fn(rows, width, |t, c| x.row(t)[start + c]);
                Ok(vec![Output { flat: width * rows < 8, ..Output::exact("y", y, expected.values) }])
            },
        )
    }));
    cases.push(Case::new(
        "join_rows",
        "2, 1, 5 and 0 rows of 37",
        Bound::EXACT,
        |b: &Checked<'_, B>, rng| {
            let parts = [2, 1, 5, 0].map(|rows| rng.values(rows, 37));
            let tensors = parts.iter().map(|part| part.on(b)).collect::<Result<Vec<_>, _>>()?;
            let y = b.join_rows(&tensors.iter().collect::<Vec<_>>())?;
            ensure(y.shape() == Shape { rows: 8, cols: 37 }, "wrong shape")?;
            Ok(vec![Output::exact(
                "y",
                b.read(&y)?,
                parts.into_iter().flat_map(|part| part.values).collect(),
            )])
        },
    ));
    cases.extend(JOINS.map(|(rows, left, right)| {
        Case::new(
            "join_columns",
            format!("{left} + {right}, n={rows}"),
            Bound::EXACT,
            move |b: &Checked<'_, B>, rng| {
                let (x, z) = (rng.values(rows, left), rng.values(rows, right));
                let y = b.join_columns(&x.on(b)?, &z.on(b)?)?;
                ensure(y.shape() == Shape { rows, cols: left + right }, "wrong shape")?;
                let value = |t, c| if c < left { x.row(t)[c] } else { z.row(t)[c - left] };
                let expected = Host::from_fn(rows, left + right, value);
                Ok(vec![Output::exact("y", b.read(&y)?, expected.values)])
            },
        )
    }));
    cases.extend(SPLITS.map(|(rows, heads, width, first)| {
        let detail = format!("{first} of {width}, {heads} heads, n={rows}");
        Case::new("split_heads", detail, Bound::EXACT, move |b: &Checked<'_, B>, rng| {
            let x = rng.values(rows, heads * width);
            let (left, right) = b.split_heads(&x.on(b)?, heads, first)?;
            let second = width - first;
            ensure(left.shape() == Shape { rows, cols: heads * first }, "wrong shape of the first part")?;
            ensure(right.shape() == Shape { rows, cols: heads * second }, "wrong shape of the second part")?;
            let mut outputs = Vec::new();
            if first > 0 {
                let a = Host::from_fn(rows, heads * first, |t, c| x.row(t)[c / first * width + c % first]);
                outputs.push(Output::exact("first", b.read(&left)?, a.values));
            }
            if second > 0 {
                let z = Host::from_fn(rows, heads * second, |t, c| {
                    x.row(t)[c / second * width + first + c % second]
                });
                outputs.push(Output::exact("second", b.read(&right)?, z.values));
            }
            Ok(outputs)
        })
    }));
    cases.extend(QKVZ.map(|(key_heads, value_heads, key_dim, value_dim)| {
        let shape = GdnShape { key_heads, value_heads, key_dim, value_dim, kernel: 4 };
        let detail = format!("{key_heads}x{key_dim} keys, {value_heads}x{value_dim} values, n=3");
        Case::new("split_qkvz", detail, Bound::EXACT, move |b: &Checked<'_, B>, rng| {
            let x = rng.values(3, shape.channels() + shape.value_total());
            let (qkv, z) = b.split_qkvz(&x.on(b)?, &shape)?;
            let (mut expected_qkv, mut expected_z) = (Vec::new(), Vec::new());
            let values = value_heads / key_heads * value_dim;
            for t in 0..3 {
                let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
                for head in x.row(t).chunks_exact(2 * key_dim + 2 * values) {
                    q.extend_from_slice(&head[..key_dim]);
                    k.extend_from_slice(&head[key_dim..2 * key_dim]);
                    v.extend_from_slice(&head[2 * key_dim..2 * key_dim + values]);
                    expected_z.extend_from_slice(&head[2 * key_dim + values..]);
                }
                expected_qkv.extend([q, k, v].concat());
            }
            Ok(vec![
                Output::exact("qkv", b.read(&qkv)?, expected_qkv),
                Output::exact("z", b.read(&z)?, expected_z),
            ])
        })
    }));
    cases
}
