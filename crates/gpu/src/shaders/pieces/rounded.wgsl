// Inputs rounded to 16 bits with one scale for each group: two digits of 8 bits, so that codes are multiplied as whole numbers, four at a
// time. A workgroup rounds groups of 32 for itself, up to ROOM at once; four neighbouring threads have a group, eight values each.
//
// Loads that wait for nothing come first, and in no branch: a branch would make its thread wait for what it has loaded.
const ROOM: u32 = LANES * STEPS;
const EACH: u32 = (4u * ROOM + THREADS - 1u) / THREADS;
// The largest number whose high digit is one of 8 bits.
const LARGEST: f32 = 32512.0;
// Added to a small number, this leaves its nearest whole number in the lowest bits.
const WHOLE: f32 = 12582912.0;

// High and low digits of eight inputs, each in the order of their codes.
var<workgroup> digits: array<vec4<u32>, 4u * ROOM>;
var<workgroup> group_scales: array<f32, ROOM>;
var<workgroup> group_sums: array<i32, ROOM>;
// What this thread has of the input.
var<private> eights: array<Eight, EACH>;

// Eight inputs rounded, the scale of their group, and its sum.
struct RoundedEight {
    digits: vec4<u32>,
    scale: f32,
    sum: i32,
}

// Where an eight's digits lie: threads that read those of neighbouring groups find them in different banks.
fn place_of_eight(e: u32) -> u32 {
    return e ^ ((e >> 3u) & 3u);
}

// The largest size of eight values, as bits, in whose order what is not a number comes after all numbers.
fn size_of(v: Eight) -> u32 {
    let four = max(bitcast<vec4<u32>>(abs(v.a)), bitcast<vec4<u32>>(abs(v.b)));
    return max(max(four.x, four.y), max(four.z, four.w));
}

// Rounds the eights of four neighbouring threads, which are a group. All threads must call it.
fn rounded_eight(v: Eight, place: Place) -> RoundedEight {
    let size = bitcast<f32>(quad_max(size_of(v), place));
    let factor = select(0.0, LARGEST / size, size > 1e-30);
    let a = bitcast<vec4<u32>>(v.a * factor + WHOLE);
    let b = bitcast<vec4<u32>>(v.b * factor + WHOLE);
    // A low digit of 128 and more stands for one below zero, and the high one is one more.
    let high = arranged((a + vec4(128u)) >> vec4(8u), (b + vec4(128u)) >> vec4(8u));
    let low = arranged(a, b);
    let highs = dot4I8Packed(high.x, 0x01010101u) + dot4I8Packed(high.y, 0x01010101u);
    let lows = dot4I8Packed(low.x, 0x01010101u) + dot4I8Packed(low.y, 0x01010101u);
    return RoundedEight(vec4(high, low), size * (1.0 / LARGEST), quad_sum(256 * highs + lows, place));
}

// Loads groups `first .. first + count` of the input. Each kernel has its own `load8(n, e)`.
fn load_input(first: u32, count: u32, place: Place) {
    for (var n = 0u; n < EACH; n++) {
        load8(n, 4u * first + min(n * THREADS + index_of(place), 4u * count - 1u));
    }
}

// What was loaded becomes the input. Each kernel has its own `made8(n, local, real)`, eight values, which
// are real or repeat the last.
fn make_input(count: u32, place: Place) {
    for (var n = 0u; n < EACH; n++) {
        let e = n * THREADS + index_of(place);
        let real = e < 4u * count;
        let made = made8(n, e, real);
        eights[n] = Eight(select(vec4(0.0), made.a, real), select(vec4(0.0), made.b, real));
    }
}

// Rounds it; groups beyond the last are zeros. Each kernel has its own `group_factor(g)`, what a group's values are to be multiplied with.
// All threads must call it, and then wait for each other.
fn round_input(first: u32, count: u32, place: Place) {
    for (var n = 0u; n < EACH; n++) {
        let e = n * THREADS + index_of(place);
        let rounded = rounded_eight(eights[n], place);
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

fn digits_of(group: u32) -> Digits {
    let e = 4u * group;
    return Digits(
        digits[place_of_eight(e)],
        digits[place_of_eight(e + 1u)],
        digits[place_of_eight(e + 2u)],
        digits[place_of_eight(e + 3u)],
    );
}

// The product of 32 weights, their codes and their scale and bias, with a group of the input.
fn group_product(c: Codes, s: vec2<f32>, d: Digits, group: u32) -> f32 {
    return group_scales[group] * scaled(first_dot(c, d.a, d.b) + second_dot(c, d.c, d.d), s, group_sums[group]);
}
