// Noise of a draw: that of `backend::sampling`, with bits that are the same and logarithms to about 1e-7.
const LN_2: f32 = 0.6931472;

fn noise_bits(choice: Choice, token: u32) -> u32 {
    var h = token ^ choice.key_first;
    h = (h ^ (h >> 16u)) * 0x21f0aaadu;
    h = (h ^ (h >> 15u)) * 0xd35a2d97u;
    h = (h ^ (h >> 15u)) + choice.key_second;
    h = (h ^ (h >> 16u)) * 0x7feb352du;
    h = (h ^ (h >> 15u)) * 0x846ca68bu;
    return h ^ (h >> 16u);
}

// The natural logarithm of a normal number: a GPU's own is only good to 2^-21 near 1.
fn ln(value: f32) -> f32 {
    // value = 2^e m, m from sqrt(1/2) to sqrt(2), and ln m = 2 atanh((m - 1) / (m + 1)).
    let bits = bitcast<u32>(value);
    let e = bitcast<i32>(bits - 0x3f3504f3u) >> 23u;
    let m = bitcast<f32>(bits - (bitcast<u32>(e) << 23u));
    let s = (m - 1.0) / (m + 1.0);
    let q = s * s;
    return f32(e) * LN_2 + 2.0 * s * (1.0 + q * (1.0 / 3.0 + q * (0.2 + q * (1.0 / 7.0 + q / 9.0))));
}

// -ln(-ln(1 - v)), v being (bits + 1/2) / 2^32.
fn gumbel(bits: u32) -> f32 {
    const UNIT = 2.3283064365386963e-10;
    if bits >= 0x80000000u {
        return -ln(-ln((f32(~bits) + 0.5) * UNIT));
    }
    // -ln(1 - v) = 2 atanh(v / (2 - v)): no digit of a small v is lost.
    let v = (f32(bits) + 0.5) * UNIT;
    let s = v / (2.0 - v);
    let q = s * s;
    let series = q * (0.2 + q * (1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0 + q * (1.0 / 13.0 + q / 15.0)))));
    return -ln(2.0 * s * (1.0 + q / 3.0 + q * series));
}

// A little more than `gumbel`, without logarithms: -ln v, as the bits of a float have it.
fn most_gumbel(bits: u32) -> f32 {
    let v = f32(bits >> 1u) + 0.25;
    return 158.0 * LN_2 + 1e-3 - f32(bitcast<u32>(v)) * (LN_2 / 8388608.0);
}

// A token with its noise.
struct Noisy {
    score: f32,
    token: u32,
}

// The better of a token with its noise and the best so far.
fn better(best: Noisy, z: f32, token: u32, choice: Choice) -> Noisy {
    let bits = noise_bits(choice, token);
    if z + most_gumbel(bits) < best.score {
        return best;
    }
    let score = z + gumbel(bits);
    if score > best.score || (score == best.score && token < best.token) {
        return Noisy(score, token);
    }
    return best;
}
