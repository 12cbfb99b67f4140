//! Every operation on the CPU, with one thread and with several.

use std::collections::BTreeSet;
use std::time::Instant;

use conformance::cases::{AT_ONCE, CHUNKS};
use conformance::{Case, Expected, Outcome, Output, all, all_fast, report, run};
use cpu::{Cpu, Numerics, Options, Set};

fn cpu_with(threads: usize, numerics: Numerics, set: Set) -> Cpu {
    let kernels = Some(set);
    Cpu::new(Options { threads: Some(threads), numerics, kernels, ..Options::default() }).unwrap()
}

/// Every case with one thread, and the same bits with three.
fn threads_do_not_matter(numerics: Numerics, cases: Vec<Case<Cpu>>) {
    let [one, three] = [1, 3].map(|threads| cpu_with(threads, numerics, Set::best()));
    let (mut compared, mut chunks) = (0, 0);
    let check = |case: Case<Cpu>| {
        let begun = Instant::now();
        let [first, second] = [&one, &three].map(|b| case.outputs(b));
        if let (Ok(first), Ok(second)) = (&first, &second) {
            assert_eq!(first.len(), second.len(), "{}", case.name);
            for (a, b) in first.iter().zip(second) {
                assert!(same_bits(a, b), "{}: {}: one thread and three differ", case.name, a.label);
                compared += 1;
            }
            if numerics == Numerics::Exact {
                chunks += same_chunks(&case.name, first);
            }
        }
        assert_eq!(first.is_ok(), second.is_ok(), "{}: one thread and three differ", case.name);
        Outcome { time: begun.elapsed(), ..case.judge(&first) }
    };
    report(&cases.into_iter().map(check).collect::<Vec<_>>());
    assert!(compared > 700, "only {compared} comparisons");
    assert!(numerics == Numerics::Fast || chunks > 100, "only {chunks} comparisons of chunks");
}

fn same_bits(a: &Output, b: &Output) -> bool {
    a.values.iter().map(|v| v.to_bits()).eq(b.values.iter().map(|v| v.to_bits()))
}

/// How many outputs in chunks there are, which have the bits of all at once.
fn same_chunks(case: &str, outputs: &[Output]) -> usize {
    let Some(whole) = outputs.iter().find(|o| o.label == AT_ONCE) else { return 0 };
    let parts = outputs.iter().filter(|o| o.label.starts_with(CHUNKS));
    parts
        .inspect(|part| assert!(same_bits(whole, part), "{case}: {} differ from all at once", part.label))
        .count()
}

#[test]
fn exact_numerics() {
    threads_do_not_matter(Numerics::Exact, all());
}

#[test]
fn fast_numerics() {
    threads_do_not_matter(Numerics::Fast, all_fast());
}

/// The machine's other instruction sets, with both numerics.
#[test]
fn other_sets() {
    for set in Set::available().into_iter().filter(|set| *set != Set::best()) {
        println!("{}, exact:", set.name());
        report(&run(&cpu_with(2, Numerics::Exact, set), all()));
        println!("{}, fast:", set.name());
        report(&run(&cpu_with(2, Numerics::Fast, set), all_fast()));
    }
}

/// Names are unique (they seed the inputs and choose cases), and every operation of the trait has
/// cases, among them one that must be refused.
#[test]
fn every_operation_has_cases() {
    let names: Vec<String> = all::<Cpu>().into_iter().map(|c| c.name).collect();
    let unique: BTreeSet<&String> = names.iter().collect();
    assert_eq!(unique.len(), names.len(), "two cases have one name");

    let sources = [
        include_str!("../../../backend/src/ops.rs"),
        include_str!("../../../backend/src/blocks.rs"),
        include_str!("../../../backend/src/weights.rs"),
        include_str!("../../../backend/src/cache.rs"),
        include_str!("../../../backend/src/run.rs"),
    ];
    let lines = sources.iter().flat_map(|source| source.lines());
    let operations = lines.filter_map(|line| line.strip_prefix("    fn ")).map(|rest| {
        let end = rest.find(['(', '<']).unwrap();
        &rest[..end]
    });
    // These are part of every other case, or only hand on what they are given.
    let implied = [
        "free_memory",
        "prepare_batch",
        "read",
        "read_routes",
        "vector",
        "hidden",
        "tensor",
        "place_bytes",
        "collect",
    ];
    // These change no result; fixtures with experts on disk go through them.
    let hints = ["prefetch_experts", "prefetch"];
    // These say something of the machine, or are no part of a step.
    let others = ["description", "depth", "take_profile", "parallel_for", "background", "most_places"];
    // These take nothing that can be wrong, or what a pool has checked.
    let always = ["soft_cap", "rope_table", "grow", "copy", "clear", "save_kv", "save_state", "submit"];
    let images = ["load_kv", "load_state"];
    for operation in operations.filter(|o| ![&implied[..], &hints, &others].concat().contains(o)) {
        let of = |text: &str| names.iter().any(|n| n.starts_with(&format!("{operation}/{text}")));
        assert!(of(""), "no case for `{operation}`");
        let refusal = always.contains(&operation) || images.contains(&operation) && of("images that lie");
        assert!(refusal || of("refused: "), "no wrong input for `{operation}`");
    }
}

/// The judge itself: a value off by more than the bound, a missing one, a NaN and an oracle of
/// zeros are all failures.
#[test]
fn a_wrong_output_fails() {
    use conformance::Bound;
    let b = cpu_with(1, Numerics::Exact, Set::best());
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
