// Nothing is added to results.
fn bias_of(result: u32) -> f32 {
    return 0.0;
}

fn residual_of(result: u32) -> f32 {
    return 0.0;
}
