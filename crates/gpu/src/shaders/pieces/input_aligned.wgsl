// Inputs whose rows are whole eights.
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;

fn input8(row: u32, i: u32) -> Eight {
    let at = (row * params.eights + i) * 2u;
    return Eight(x[at], x[at + 1u]);
}
