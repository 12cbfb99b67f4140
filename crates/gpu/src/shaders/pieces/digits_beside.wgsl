// One more workgroup rounds the input of experts.
const DIGITS: bool = true;

@group(0) @binding(7) var<storage, read> expert_norm: array<vec4<f32>>;

fn digit_weight8(e: u32) -> Eight {
    return Eight(expert_norm[2u * e], expert_norm[2u * e + 1u]);
}

// Each prologue that can have it has its own `prepare_digits(place)` and `digit8(e)`.
fn write_beside(place: Place) {
    wait_for_inputs(place);
    prepare_digits(place);
    write_digits(place);
}
