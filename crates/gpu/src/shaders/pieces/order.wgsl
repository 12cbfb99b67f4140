// The best of candidates, ties to the lower index. Values are compared by keys: whole numbers in the order of the floats they
// stand for.
struct Candidate {
    key: u32,
    index: u32,
}

const NOBODY: u32 = 0xffffffffu;

// The key of a value; `nan` for what is not a number.
fn key_of(value: f32, nan: u32) -> u32 {
    if is_nan(value) {
        return nan;
    }
    // Zeros of either sign are equal.
    let bits = select(bitcast<u32>(value), 0u, value == 0.0);
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

fn value_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, key >= 0x80000000u));
}

// Whether `a` comes before `b`. NOBODY comes last.
fn before(a: Candidate, b: Candidate) -> bool {
    if a.index == NOBODY || b.index == NOBODY {
        return b.index == NOBODY && a.index != NOBODY;
    }
    return a.key > b.key || (a.key == b.key && a.index < b.index);
}
