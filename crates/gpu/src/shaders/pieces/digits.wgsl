// The work of one workgroup beside a router's: rms(x) * expert_norm, rounded for experts of
// `params.digit_bits` bits. Into `y`, from `params.digits_at` on: digits of every eight; behind
// those of all, the scale and the sum of every group. Each kernel has its own `digit8(e)` and
// `digit_weight8(e)`.
fn write_digits(place: Place) {
    let index = index_of(place);
    var squares = vec2(0.0);
    for (var e = index; e < params.eights; e += THREADS) {
        let v = digit8(e);
        squares += squares_of8(v.a, v.b);
    }
    let inverse = inverse_rms(squares, params.cols, params.eps, place);
    for (var start = 0u; start < params.eights; start += THREADS) {
        let e = min(start + index, params.eights - 1u);
        let v = digit8(e);
        let weight = digit_weight8(e);
        let rounded = rounded_eight(Eight(v.a * weight.a, v.b * weight.b), params.digit_bits, place);
        if start + index < params.eights {
            let at = params.digits_at + 4u * e;
            for (var i = 0u; i < 4u; i++) {
                y[at + i] = bitcast<f32>(rounded.digits[i]);
            }
            if e % 4u == 0u {
                let at = params.digits_at + 4u * params.eights + e / 2u;
                y[at] = rounded.scale * inverse;
                y[at + 1u] = bitcast<f32>(rounded.sum);
            }
        }
    }
}
