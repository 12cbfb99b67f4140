// A power of two in a byte, no bias.
fn scale(row: u32, i: u32) -> vec2<f32> {
    let group = i / (GROUP / 8u);
    let exponent = (scales[row * params.row_scales + group / 4u] >> (8u * (group & 3u))) & 255u;
    // The smallest has no exponent bits to put it in.
    return vec2(bitcast<f32>(select(exponent << 23u, 0x00400000u, exponent == 0u)), 0.0);
}
