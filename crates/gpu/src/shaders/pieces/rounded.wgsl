// Inputs of a workgroup rounded to 16 bits with one scale for each group of 32: two digits of 8 bits, so that codes are multiplied as
// whole numbers, four at a time. Up to ROOM groups at once. Four neighbouring threads have a group, eight values each.
const ROOM: u32 = min(LANES * STEPS, 144u);
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

// Where an eight's digits lie: threads that read those of neighbouring groups find them in different banks.
fn place_of_eight(e: u32) -> u32 {
    return e ^ ((e >> 3u) & 3u);
}

fn size_of(v: Eight) -> f32 {
    let four = max(abs(v.a), abs(v.b));
    let sum = v.a + v.b;
    // What is not a number must not pass for a small one.
    return select(max(max(four.x, four.y), max(four.z, four.w)), 3.0e38, is_nan((sum.x + sum.y) + (sum.z + sum.w)));
}

// The lowest bytes of four words as one.
fn low_bytes(v: vec4<u32>) -> u32 {
    return (v.x & 255u) | ((v.y & 255u) << 8u) | ((v.z & 255u) << 16u) | (v.w << 24u);
}

// Loads groups `first .. first + count` of the input. Each kernel has its own `input8(e, local)`, eight values.
fn load_input(first: u32, count: u32, place: Place) {
    for (var n = 0u; n < EACH; n++) {
        let e = n * THREADS + index_of(place);
        eights[n] = Eight(vec4(0.0), vec4(0.0));
        if e < 4u * count {
            eights[n] = input8(4u * first + e, e);
        }
    }
}

// Rounds what was loaded. Each kernel has its own `group_factor(g)`, what a group's values are to be multiplied with. All threads must call
// it, and then wait for each other.
fn round_input(first: u32, count: u32, place: Place) {
    for (var n = 0u; n < EACH; n++) {
        let e = n * THREADS + index_of(place);
        let size = quad_max(size_of(eights[n]), place);
        let factor = select(0.0, LARGEST / size, size > 1e-30);
        let a = bitcast<vec4<u32>>(eights[n].a * factor + WHOLE);
        let b = bitcast<vec4<u32>>(eights[n].b * factor + WHOLE);
        // A low digit of 128 and more stands for one below zero, and the high one is one more.
        let high = arranged((a + vec4(128u)) >> vec4(8u), (b + vec4(128u)) >> vec4(8u));
        let low = arranged(a, b);
        let highs = dot4I8Packed(high.x, 0x01010101u) + dot4I8Packed(high.y, 0x01010101u);
        let lows = dot4I8Packed(low.x, 0x01010101u) + dot4I8Packed(low.y, 0x01010101u);
        let sum = quad_sum(256 * highs + lows, place);
        if e < 4u * count {
            digits[place_of_eight(e)] = vec4(high, low);
            if (e & 3u) == 0u {
                group_scales[e / 4u] = size / LARGEST * group_factor(first + e / 4u);
                group_sums[e / 4u] = sum;
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
    let sum = group_sums[group];
    let parts = codes_dot(c, d);
    let product = 256 * parts.x + parts.y - ABOVE * sum;
    return group_scales[group] * (s.x * f32(product) + s.y * f32(sum));
}
