//! Every operation on the CPU, with one thread and with several.

use std::collections::BTreeSet;

use conformance::cases::{AT_ONCE, CHUNKS};
use conformance::{Expected, all, report, run_all, run_all_fast};
use cpu::{Cpu, Numerics, Options, Set};

fn cpu_with(threads: usize, numerics: Numerics, set: Set) -> Cpu {
    let kernels = Some(set);
    Cpu::new(Options { threads: Some(threads), numerics, kernels, ..Options::default() }).unwrap()
}

fn cpu(threads: usize) -> Cpu {
    cpu_with(threads, Numerics::Exact, Set::best())
}

#[test]
fn one_thread() {
    report(&run_all(&cpu(1), None));
}

#[test]
fn three_threads() {
    report(&run_all(&cpu(3), None));
}

/// Every instruction set of this machine, with both numerics.
#[test]
fn every_set() {
    for set in Set::available() {
        println!("{}, exact:", set.name());
        report(&run_all(&cpu_with(2, Numerics::Exact, set), None));
        let b = cpu_with(2, Numerics::Fast, set);
        println!("{}, fast:", set.name());
        report(&run_all_fast(&b));
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for numerics in [Numerics::Exact, Numerics::Fast] {
        compare_threads(numerics);
    }
}

fn compare_threads(numerics: Numerics) {
    let [one, two] = [1, 2].map(|threads| cpu_with(threads, numerics, Set::best()));
    let mut compared = 0;
    for case in all::<Cpu>() {
        let run = |b: &Cpu| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case.outputs(b)));
        let (Ok(Ok(a)), Ok(Ok(b))) = (run(&one), run(&two)) else { continue };
        assert_eq!(a.len(), b.len(), "{}", case.name);
        for (a, b) in a.iter().zip(&b) {
            let same = a.values.iter().map(|v| v.to_bits()).eq(b.values.iter().map(|v| v.to_bits()));
            assert!(same, "{}: {}: one thread and two differ", case.name, a.label);
            compared += 1;
        }
    }
    assert!(compared > 700, "only {compared} comparisons");
}

#[test]
fn chunks_do_not_change_a_bit() {
    let b = cpu(2);
    let mut compared = 0;
    for case in all::<Cpu>() {
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case.outputs(&b)));
        let Ok(Ok(outputs)) = run else { continue };
        let Some(whole) = outputs.iter().find(|o| o.label == AT_ONCE) else { continue };
        for part in outputs.iter().filter(|o| o.label.starts_with(CHUNKS)) {
            let same = whole.values.iter().map(|v| v.to_bits()).eq(part.values.iter().map(|v| v.to_bits()));
            assert!(same, "{}: {} differ from all at once", case.name, part.label);
            compared += 1;
        }
    }
    assert!(compared > 100, "only {compared} comparisons");
}

/// Names are unique (they seed the inputs and choose cases), and every operation of the trait has cases, among them
/// one that must be refused.
#[test]
fn every_operation_has_cases() {
    let names: Vec<String> = all::<Cpu>().into_iter().map(|c| c.name).collect();
    let unique: BTreeSet<&String> = names.iter().collect();
    assert_eq!(unique.len(), names.len(), "two cases have one name");

    let source = [include_str!("../../backend/src/ops.rs"), include_str!("../../backend/src/blocks.rs")];
    let sources = [&source[..], &[include_str!("../../backend/src/weights.rs")]].concat();
    let sources = [&sources[..], &[include_str!("../../backend/src/cache.rs")]].concat();
    let lines = sources.iter().flat_map(|source| source.lines());
    let operations = lines.filter_map(|line| line.strip_prefix("    fn ")).map(|rest| {
        let end = rest.find(['(', '<']).unwrap();
        &rest[..end]
    });
    // These are part of every other case, or only hand on what they are given.
    let implied = ["free_memory", "prepare_batch", "read", "read_routes", "vector", "hidden", "tensor"];
    // These change no result; fixtures with experts on disk go through them.
    let hints = ["prefetch_experts", "prefetch"];
    // These take nothing that can be wrong.
    let always = [
        "read_into",
        "soft_cap",
        "rope_table",
        "kv_truncate",
        "kv_save",
        "kv_clone",
        "recurrent_clone",
        "recurrent_save",
    ];
    let images = ["kv_load", "recurrent_load"];
    for operation in operations.filter(|o| ![&implied[..], &hints].concat().contains(o)) {
        let of = |text: &str| names.iter().any(|n| n.starts_with(&format!("{operation}/{text}")));
        assert!(of(""), "no case for `{operation}`");
        let refusal = always.contains(&operation) || images.contains(&operation) && of("images that lie");
        assert!(refusal || of("refused: "), "no wrong input for `{operation}`");
    }
}

/// The judge itself: a value off by more than the bound, a missing one, a NaN and an oracle of zeros are all failures.
#[test]
fn a_wrong_output_fails() {
    use conformance::{Bound, Case, Output};
    let b = cpu(1);
    let good = [1.0f32, -2.0, 3.0, 0.5];
    let judged = |values: Vec<f32>, expected: Vec<f64>| {
        let case = Case::<Cpu>::new("judge", "test", Bound::l2(1e-6), move |_, _| {
            let output = Output::close("y", values.clone(), &Vec::new());
            Ok(vec![Output { expected: Expected::Close(expected.clone()), ..output }])
        });
        case.check(&b).failure.map(|f| f.to_string())
    };
    let wide: Vec<f64> = good.map(f64::from).to_vec();
    assert_eq!(judged(good.to_vec(), wide.clone()), None);
    let text = judged(vec![1.0, -2.0, 3.001, 0.5], wide.clone()).unwrap();
    assert!(
        text.starts_with("judge/test: y: relative L2 error 2.6") && text.contains("(bound 1.00e-6)"),
        "{text}"
    );
    assert!(judged(good[..3].to_vec(), wide.clone()).is_some());
    assert!(judged(vec![1.0, -2.0, f32::NAN, 0.5], wide).is_some());
    assert!(judged(vec![0.0; 4], vec![0.0; 4]).is_some());
    assert!(judged(vec![7.0; 4], vec![7.0; 4]).is_some());
}
