// For each expert the pairs that chose it, in their order, one expert after the other: a workgroup per expert. Counting what
// chose an expert before this one says where its list begins, so that no workgroup waits for another and the order is always
// the same.
struct Params {
    pairs: u32,
    experts: u32,
}
@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> ids: array<u32>;
// Pairs, by expert.
@group(0) @binding(1) var<storage, read_write> list: array<u32>;
// [expert]: where its pairs begin in the list, and how many there are.
@group(0) @binding(2) var<storage, read_write> spans: array<vec2<u32>>;

var<workgroup> counts: array<vec2<u32>, THREADS>;

@compute @workgroup_size(THREADS)
fn main(place: Place) {
    let expert = folded(place);
    if expert >= params.experts {
        return;
    }
    // Each thread has a stretch of neighbouring pairs.
    let share = (params.pairs + THREADS - 1u) / THREADS;
    let begin = min(place.thread * share, params.pairs);
    let end = min(begin + share, params.pairs);
    var before = 0u;
    var own = 0u;
    for (var p = begin; p < end; p++) {
        before += u32(ids[p] < expert);
        own += u32(ids[p] == expert);
    }
    counts[place.thread] = vec2(before, own);
    workgroupBarrier();
    var start = 0u;
    var total = 0u;
    var place_in_list = 0u;
    for (var i = 0u; i < THREADS; i++) {
        if i == place.thread {
            place_in_list = total;
        }
        start += counts[i].x;
        total += counts[i].y;
    }
    if place.thread == 0u {
        spans[expert] = vec2(start, total);
    }
    var at = start + place_in_list;
    for (var p = begin; p < end; p++) {
        if ids[p] == expert {
            list[at] = p;
            at++;
        }
    }
}
