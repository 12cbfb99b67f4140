//! Choosing experts.

use backend::{Backend, Checked, GroupedSigmoid, Routing};

use super::ensure;
use crate::formulas::moe::{Route, route_grouped, route_softmax};
use crate::host::{Host, Rows};
use crate::random::Rng;
use crate::{Bound, Case, CaseResult, Output};

const BOUND: Bound = Bound::l2(1e-6);

/// A choice nearer than this to its alternative could turn out otherwise in f32.
const MARGIN: f64 = 1e-4;

/// Tokens, experts, chosen, size of the logits.
const SOFTMAX: [(usize, usize, usize, f32); 9] = [
    (1, 1, 1, 1.0),
    (3, 2, 1, 1.0),
    (5, 7, 3, 1.0),
    (65, 60, 4, 2.0),
    (9, 128, 8, 3.0),
    (2, 513, 17, 3.0),
    (4, 11, 11, 1.0),
    (2, 256, 256, 5.0),
    (3, 100, 1, 20.0),
];

/// Tokens, experts, chosen, groups, kept groups.
const GROUPED: [(usize, usize, usize, usize, usize); 7] = [
    (3, 8, 2, 1, 1),
    (5, 12, 3, 3, 2),
    (4, 256, 8, 8, 4),
    (2, 15, 4, 5, 4),
    (2, 15, 15, 5, 5),
    (2, 15, 6, 5, 2),
    (3, 9, 9, 1, 1),
];

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let mut cases = Vec::new();
    for (n, experts, top_k, size) in SOFTMAX {
        let shape = format!("{top_k} of {experts}, logits of {size}, n={n}");
        for renormalise in [true, false] {
            let detail = format!("{}{shape}", if renormalise { "to sum 1, " } else { "" });
            cases.push(Case::new(
                "route",
                format!("softmax, {detail}"),
                BOUND,
                move |b: &Checked<'_, B>, rng| {
                    let choose = |l: &[f64]| route_softmax(l, top_k, renormalise, None);
                    let (logits, routes) = clear(rng, n, experts, size, choose);
                    judge(
                        b.read_routes(&b.route(&logits.on(b)?, &Routing::Softmax { top_k, renormalise })?)?,
                        &routes,
                    )
                },
            ));
        }
        cases.push(Case::new(
            "route",
            format!("softmax, scaled, {shape}"),
            BOUND,
            move |b: &Checked<'_, B>, rng| {
                let scales = Host::from_fn(1, experts, |_, _| rng.uniform(0.2, 3.0));
                let choose = |l: &[f64]| route_softmax(l, top_k, true, Some(&scales.wide()[0]));
                let (logits, routes) = clear(rng, n, experts, size, choose);
                judge(
                    b.read_routes(
                        &b.route(&logits.on(b)?, &Routing::SoftmaxScaled { top_k, scale: scales.on(b)? })?,
                    )?,
                    &routes,
                )
            },
        ));
    }
    for (n, experts, top_k, groups, kept_groups) in GROUPED {
        for (renormalise, scaling, offset) in [(true, 2.5, 0.0), (false, 1.0, 0.0), (true, 1.5, -2.0)] {
            let spec = GroupedSigmoid { top_k, groups, kept_groups, renormalise, scaling };
            // An offset takes every p + bias below zero: the experts left out must be out all the same.
            let name = format!("to sum 1: {renormalise}, scaling {scaling}, bias about {offset}");
            let detail = format!("{top_k} of {experts}, {kept_groups} of {groups} groups, {name}, n={n}");
            cases.push(Case::new(
                "route",
                format!("sigmoids, {detail}"),
                BOUND,
                move |b: &Checked<'_, B>, rng| {
                    let bias = Host::from_fn(1, experts, |_, _| offset + 0.3 * rng.normal());
                    let choose = |l: &[f64]| route_grouped(l, &bias.wide()[0], &spec);
                    let (logits, routes) = clear(rng, n, experts, 2.0, choose);
                    judge(
                        b.read_routes(
                            &b.route(&logits.on(b)?, &Routing::GroupedSigmoid { spec, bias: bias.on(b)? })?,
                        )?,
                        &routes,
                    )
                },
            ));
        }
    }
    cases.extend(ties());
    cases.push(huge());
    cases.push(Case::new(
        "route",
        "sigmoids, every p underflows, weights stay finite",
        BOUND,
        |b: &Checked<'_, B>, _| {
            let spec =
                GroupedSigmoid { top_k: 2, groups: 1, kept_groups: 1, renormalise: true, scaling: 1.0 };
            let (logits, bias) = (Host::from_fn(1, 8, |_, _| -1e4), Host::from_fn(1, 8, |_, e| e as f32));
            let (ids, weights) = b.read_routes(
                &b.route(&logits.on(b)?, &Routing::GroupedSigmoid { spec, bias: bias.on(b)? })?,
            )?;
            ensure(weights.iter().all(|w| w.is_finite()), &format!("the weights are {weights:?}"))?;
            Ok(vec![Output::ids("ids", &ids, [7, 6])])
        },
    ));
    cases
}

/// Logits for which every choice is clear, and the routes the formula takes.
fn clear(
    rng: &mut Rng,
    n: usize,
    experts: usize,
    size: f32,
    choose: impl Fn(&[f64]) -> Route,
) -> (Host, Vec<Route>) {
    let (mut parts, mut routes) = (Vec::new(), Vec::new());
    while parts.len() < n {
        // Spread evenly, so that neighbours in rank are apart even among hundreds.
        let order = rng.order(experts);
        let even = Host::from_fn(1, experts, |_, e| {
            let rank = (order[e] as f32 + rng.uniform(0.1, 0.9)) / experts as f32;
            size * (2.0 * rank - 1.0)
        });
        let route = choose(&even.wide()[0]);
        if route.margin > MARGIN {
            parts.push(even);
            routes.push(route);
        }
    }
    (Host::stack(&parts), routes)
}

fn judge((ids, weights): (Vec<u32>, Vec<f32>), routes: &[Route]) -> CaseResult {
    let expected: Rows = routes.iter().map(|r| r.weights.clone()).collect();
    Ok(vec![
        Output::ids("ids", &ids, routes.iter().flat_map(|r| r.ids.clone())),
        Output::close("weights", weights, &expected).flat(),
    ])
}

/// Equal logits go to the lower index.
fn ties<B: Backend>() -> Vec<Case<B>> {
    // Logits, ids of the best four.
    let rows: [(&str, [f32; 10], [usize; 4]); 4] = [
        ("all equal", [0.5; 10], [0, 1, 2, 3]),
        ("two levels", [0., 1., 0., 1., 0., 1., 0., 1., 0., 1.], [1, 3, 5, 7]),
        ("at the edge", [3., 1., 1., 2., 1., 1., 1., 1., 1., 1.], [0, 3, 1, 2]),
        ("zeros of either sign", [-0., 0., -0., 0., 0., 0., -0., 0., 0., 0.], [0, 1, 2, 3]),
    ];
    let mut cases = Vec::new();
    for (name, logits, ids) in rows {
        let softmax = move |b: &Checked<'_, B>, _: &mut Rng| {
            let route = route_softmax(&logits.map(f64::from), 4, true, None);
            ensure(route.ids == ids, "the formula and the table differ: mend the case")?;
            let on = Host::vector(logits.to_vec()).on(b)?;
            judge(b.read_routes(&b.route(&on, &Routing::Softmax { top_k: 4, renormalise: true })?)?, &[route])
        };
        cases.push(Case::new("route", format!("softmax, ties, {name}"), BOUND, softmax));
        let scaled = move |b: &Checked<'_, B>, rng: &mut Rng| {
            let scales = rng.gain(10);
            let route = route_softmax(&logits.map(f64::from), 4, true, Some(&scales.wide()[0]));
            let on = Host::vector(logits.to_vec()).on(b)?;
            judge(
                b.read_routes(&b.route(&on, &Routing::SoftmaxScaled { top_k: 4, scale: scales.on(b)? })?)?,
                &[route],
            )
        };
        cases.push(Case::new("route", format!("softmax, scaled, ties, {name}"), BOUND, scaled));
        for (groups, kept_groups) in [(1, 1), (5, 2)] {
            let spec = GroupedSigmoid { top_k: 4, groups, kept_groups, renormalise: true, scaling: 1.0 };
            let grouped = move |b: &Checked<'_, B>, _: &mut Rng| {
                let bias = Host::vector(vec![0.25; 10]);
                let route = route_grouped(&logits.map(f64::from), &bias.wide()[0], &spec);
                let on = Host::vector(logits.to_vec()).on(b)?;
                judge(
                    b.read_routes(&b.route(&on, &Routing::GroupedSigmoid { spec, bias: bias.on(b)? })?)?,
                    &[route],
                )
            };
            let detail = format!("ties, {name}, {kept_groups} of {groups} groups");
            cases.push(Case::new("route", format!("sigmoids, {detail}"), BOUND, grouped));
        }
    }
    cases
}

/// Logits of 1e4: nothing overflows, nothing becomes NaN, and the order stays.
fn huge<B: Backend>() -> Case<B> {
    Case::new("route", "softmax, logits of 1e4 and -1e4, 3 of 6", BOUND, |b: &Checked<'_, B>, rng| {
        let rows = [
            [1e4, -1e4, 9999.0, 0.0, 9998.5, 5.0],
            [-1e4, -1e4, -9999.0, -1e4, -9999.5, -1e4],
            [1e4, 1e4, 1e4, 1e4, 1e4, 1e4],
            [-1e4, 1e4, -5e3, 0.0, -9e3, -1e4],
        ];
        let logits = Host { rows: 4, cols: 6, values: rows.concat() };
        let wide = logits.wide();
        let scales = rng.gain(6);
        let mut outputs = Vec::new();
        for renormalise in [true, false] {
            let routes: Vec<Route> = wide.iter().map(|l| route_softmax(l, 3, renormalise, None)).collect();
            outputs.extend(judge(
                b.read_routes(&b.route(&logits.on(b)?, &Routing::Softmax { top_k: 3, renormalise })?)?,
                &routes,
            )?);
        }
        let routes: Vec<Route> =
            wide.iter().map(|l| route_softmax(l, 3, true, Some(&scales.wide()[0]))).collect();
        outputs.extend(judge(
            b.read_routes(
                &b.route(&logits.on(b)?, &Routing::SoftmaxScaled { top_k: 3, scale: scales.on(b)? })?,
            )?,
            &routes,
        )?);
        Ok(outputs)
    })
}
