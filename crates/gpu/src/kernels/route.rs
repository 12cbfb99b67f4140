//! Routing, and the largest values of a row.

use crate::kernel::kernel;

kernel! {
    route_softmax = "route_softmax" [Order, Rank, Sum]
    params {
        tokens: u32, experts: u32, top_k: u32, renormalise: u32, has_factors: u32, row: u32, slots: u32,
    }
    bindings { logits: read, factors: read or logits, ids: write, weights: write }
    fixed { threads = 256 }
}

kernel! {
    route_grouped = "route_grouped" [Order, Rank]
    params {
        tokens: u32, experts: u32, top_k: u32, groups: u32, kept: u32, renormalise: u32, scaling: f32,
        row: u32, slots: u32,
    }
    bindings {
        logits: read, bias: read, ids: write, weights: write, group_scores: write, group_ranks: write,
    }
    fixed { threads = 256 }
}

kernel! {
    top = "top" [Order, Best]
    params { rows: u32, cols: u32, block: u32, blocks: u32 }
    bindings { x: read, ids: write, values: write }
    fixed { threads = 256 }
}
