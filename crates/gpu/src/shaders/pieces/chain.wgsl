// A kernel that starts before those in front of it have finished, and waits by itself for the ones it depends on: what does not depend on them may be asked for
// meanwhile. All workgroups of a kernel are running before any of the next one's starts, so nobody waits for one that cannot start.
const CHAINED: bool = true;

struct Link {
    // Where up to two kernels count their workgroups that have finished, and what they will have counted.
    one: u32,
    until_one: u32,
    other: u32,
    until_other: u32,
    // Where this one counts its own.
    own: u32,
    // How often to look before giving up.
    patience: u32,
}
@group(1) @binding(1) var<uniform> link: Link;
// The last counts how often somebody gave up.
@group(1) @binding(2) var<storage, read_write> finished: array<atomic<u32>>;

// Whether a kernel has counted as much. One thread looks for all of its subgroup, and all see the same: a compiler need not lead a thread back to the others that
// has waited alone.
fn is_there(place: Place) -> bool {
    var missing = 0;
    if place.lane == 0u {
        let one = atomicLoad(&finished[link.one]) - link.until_one;
        let other = atomicLoad(&finished[link.other]) - link.until_other;
        missing = min(bitcast<i32>(one), bitcast<i32>(other));
    }
    return subgroupBroadcast(missing, 0u) >= 0;
}

// Always 0, which nobody can know before all have waited.
var<workgroup> nothing: u32;
var<private> origin: u32;

// A place in a buffer that other kernels of this step write. It depends on what is known only when they have finished: otherwise the compiler may load what is there
// before that, from buffers that this kernel only reads.
fn ready(place: u32) -> u32 {
    return origin + place;
}

// Returns when what this kernel reads is there. All threads must call it, once, before they read what other kernels of this step write.
fn wait_for_inputs(place: Place) {
    if place.subgroup == 0u {
        var looks = 0u;
        while !is_there(place) && looks < link.patience {
            looks++;
        }
        nothing = looks / (link.patience + 1u);
        if looks == link.patience && place.lane == 0u {
            atomicAdd(&finished[arrayLength(&finished) - 1u], 1u);
        }
    }
    // No barrier for memory, which takes a microsecond: nobody has loaded anything of what others have written since the chain began, so nothing old can be
    // in a cache, and `ready` keeps loads behind this.
    workgroupBarrier();
    origin = nothing;
}

// The last that all threads do.
fn announce(place: Place) {
    storageBarrier();
    if place.thread == 0u {
        atomicAdd(&finished[link.own], 1u);
    }
}
