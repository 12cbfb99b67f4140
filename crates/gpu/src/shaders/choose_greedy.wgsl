// The likeliest token of each row, of what `top` found in its blocks; it becomes the last one of its slot. A row per workgroup.
struct Params {
    rows: u32,
    blocks: u32,
    // The slot of the only row, or NOBODY.
    slot: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

// Columns of the largest values, and these.
@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read> values: array<f32>;
// The slot of each of several rows.
@group(0) @binding(2) var<storage, read> slots: array<u32>;
@group(0) @binding(3) var<storage, read_write> last: array<u32>;
// Of each row the token and the bits of its logit.
@group(0) @binding(4) var<storage, read_write> chosen: array<u32>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let row = folded(place);
    if row >= params.rows {
        return;
    }
    var own = Candidate(0u, NOBODY);
    for (var block = place.thread; block < params.blocks; block += THREADS) {
        let at = row * params.blocks + block;
        let candidate = Candidate(key_of(values[at], 0xffffffffu), ids[at]);
        if before(candidate, own) {
            own = candidate;
        }
    }
    let best = workgroup_best(own, place);
    if place.thread == 0u {
        chosen[2u * row] = best.index;
        chosen[2u * row + 1u] = bitcast<u32>(value_of(best.key));
        var slot = params.slot;
        if params.rows > 1u {
            slot = slots[row];
        }
        if slot != NOBODY {
            last[slot] = best.index;
        }
    }
}
