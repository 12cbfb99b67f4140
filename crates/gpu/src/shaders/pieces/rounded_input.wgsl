// Inputs that a workgroup rounds for itself.

// What this thread has of the input.
var<private> eights: array<Eight, EACH>;

// Loads what groups `first .. first + count` of the input are multiplied with. Each prologue has its own `load_norm8(n, e)`.
fn load_norms(first: u32, count: u32, place: Place) {
    for (var n = 0u; n < EACH; n++) {
        load_norm8(n, 4u * first + min(n * THREADS + index_of(place), 4u * count - 1u));
    }
}

// Loads those groups themselves. Each prologue has its own `load8(n, e)`.
fn load_input(first: u32, count: u32, place: Place) {
    for (var n = 0u; n < EACH; n++) {
        load8(n, 4u * first + min(n * THREADS + index_of(place), 4u * count - 1u));
    }
}

// What was loaded becomes the input. Each prologue has its own `made8(n, local, real, place)`, eight values, which
// are real or repeat the last.
fn make_input(count: u32, place: Place) {
    for (var n = 0u; n < EACH; n++) {
        let e = n * THREADS + index_of(place);
        let real = e < 4u * count;
        let made = made8(n, e, real, place);
        eights[n] = Eight(select(vec4(0.0), made.a, real), select(vec4(0.0), made.b, real));
    }
}

// Rounds it; groups beyond the last are zeros. Each prologue has its own `group_factor(g)`, what a group's values are to be multiplied with.
// All threads must call it, and then wait for each other.
fn round_input(first: u32, count: u32, place: Place) {
    for (var n = 0u; n < EACH; n++) {
        let e = n * THREADS + index_of(place);
        let rounded = rounded_eight(eights[n], BITS, place);
        if e < 4u * ROOM {
            digits[place_of_eight(e)] = rounded.digits;
            if (e & 3u) == 0u {
                let factor = group_factor(first + min(e / 4u, count - 1u));
                group_scales[e / 4u] = select(0.0, rounded.scale * factor, e < 4u * count);
                group_sums[e / 4u] = rounded.sum;
            }
        }
    }
}
