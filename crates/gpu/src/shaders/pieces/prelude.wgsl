// The place of a workgroup in a grid that had to be folded because one dimension holds at most 65535.
fn folded(place: Place) -> u32 {
    return place.workgroup.x + place.workgroup.y * place.grid.x;
}

// Far below any score, and still a number.
const LOWEST: f32 = -3.0e38;

fn sigmoid(x: f32) -> f32 {
    // exp of a large argument may be anything on a GPU: keep it small.
    let e = exp(-abs(x));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}

fn silu(x: f32) -> f32 {
    return x * sigmoid(x);
}

// tanh of some drivers overflows for large arguments.
fn bounded_tanh(x: f32) -> f32 {
    return tanh(clamp(x, -15.0, 15.0));
}

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
