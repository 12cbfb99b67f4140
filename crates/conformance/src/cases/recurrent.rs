//! Recurrent states: fresh, copied, saved and loaded.

use backend::{Backend, Checked, Error, RecurrentImage};

use super::ensure;
use super::gdn::{Sequence, shape};
use crate::{Bound, Case, Fault, Output};

const BOUND: Bound = Bound::l2(2e-6);

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    vec![
        Case::new("recurrent", "a fresh state is all zeros", Bound::EXACT, |b: &Checked<'_, B>, _| {
            let shape = shape(2, 4, 5, 3);
            let image = b.recurrent_save(&b.recurrent(&shape)?)?;
            let zeros = |n| vec![0.0; n];
            Ok(vec![
                Output::exact("window", image.window, zeros(shape.window_len())).flat(),
                Output::exact("state", image.state, zeros(shape.state_len())).flat(),
            ])
        }),
        Case::new(
            "recurrent_clone",
            "later steps of either change the other in nothing",
            BOUND,
            |b: &Checked<'_, B>, rng| {
                let shape = shape(2, 4, 5, 3);
                let s = Sequence::new(rng, &shape, 30);
                let x = rng.values(30, shape.channels());
                let taps = rng.calm(shape.channels(), 4).on(b)?;
                let conv = |state: &mut B::Recurrent, r: std::ops::Range<usize>| {
                    let batch = super::one_span(b, r.len(), r.start)?;
                    b.read(&b.conv_causal(&x.slice(r).on(b)?, &taps, &batch, &mut [state])?)
                };
                let mut state = b.recurrent(&shape)?;
                conv(&mut state, 0..20)?;
                s.step(b, &mut state, 0..20)?;
                let before = b.recurrent_save(&state)?;
                let mut copy = b.recurrent_clone(&state)?;
                conv(&mut state, 20..30)?;
                let first = s.step(b, &mut state, 20..30)?;
                ensure(b.recurrent_save(&copy)? == before, "the copy changed with the original")?;
                let after = b.recurrent_save(&state)?;
                ensure(
                    after.window != before.window && after.state != before.state,
                    "the original did not change",
                )?;
                let second = s.step(b, &mut copy, 20..30)?;
                ensure(b.recurrent_save(&state)? == after, "the original changed with the copy")?;
                let expected = s.expected(&shape).0[20..].to_vec();
                Ok(vec![
                    Output::close("original", first, &expected),
                    Output::close("copy", second, &expected),
                ])
            },
        ),
        Case::new("recurrent_save", "then load, then go on", BOUND, |b: &Checked<'_, B>, rng| {
            let shape = shape(1, 2, 8, 12);
            let s = Sequence::new(rng, &shape, 40);
            let mut state = b.recurrent(&shape)?;
            s.step(b, &mut state, 0..25)?;
            let image = b.recurrent_save(&state)?;
            let mut loaded = b.recurrent_load(&shape, &image)?;
            ensure(b.recurrent_save(&loaded)? == image, "what was loaded is not what was saved")?;
            let out = s.step(b, &mut loaded, 25..40)?;
            Ok(vec![Output::close("y", out, &s.expected(&shape).0[25..].to_vec())])
        }),
        Case::new(
            "recurrent_load",
            "images that lie about their size",
            Bound::EXACT,
            |b: &Checked<'_, B>, _| {
                let shape = shape(2, 4, 5, 3);
                let image = b.recurrent_save(&b.recurrent(&shape)?)?;
                let RecurrentImage { window, state } = &image;
                let lies = [
                    RecurrentImage { window: window[1..].to_vec(), state: state.clone() },
                    RecurrentImage { window: window.clone(), state: state[1..].to_vec() },
                    RecurrentImage { window: [window.as_slice(), &[0.0]].concat(), state: state.clone() },
                    RecurrentImage { window: state.clone(), state: window.clone() },
                    RecurrentImage { window: Vec::new(), state: Vec::new() },
                ];
                for (i, lie) in lies.iter().enumerate() {
                    match b.recurrent_load(&shape, lie) {
                        Err(Error::Image(_)) => {}
                        Err(error) => return Err(Fault::Wrong(format!("lie {i} gave {error:?}"))),
                        Ok(_) => return Err(Fault::Wrong(format!("lie {i} was believed"))),
                    }
                }
                Ok(Vec::new())
            },
        ),
    ]
}
