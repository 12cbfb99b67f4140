// Inputs rounded to 16 bits with one scale for each group: two digits of 8 bits, so that codes are multiplied as whole numbers, four at a
// time. A workgroup rounds groups of 32 for itself, up to ROOM at once; four neighbouring threads have a group, eight values each.
//
// Loads that wait for nothing come first, and in no branch: a branch would make its thread wait for what it has loaded.
const ROOM: u32 = LANES * STEPS;
const EACH: u32 = (4u * ROOM + THREADS - 1u) / THREADS;
// High and low digits of eight inputs, each in the order of their codes.
var<workgroup> digits: array<vec4<u32>, 4u * ROOM>;
var<workgroup> group_scales: array<f32, ROOM>;
var<workgroup> group_sums: array<i32, ROOM>;

// Where an eight's digits lie: threads that read those of neighbouring groups find them in different banks.
fn place_of_eight(e: u32) -> u32 {
    return e ^ ((e >> 3u) & 3u);
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
