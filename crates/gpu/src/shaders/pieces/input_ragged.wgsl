// Inputs whose rows end within an eight.
@group(0) @binding(2) var<storage, read> x: array<f32>;

fn input_at(row: u32, column: u32) -> f32 {
    if column < params.cols {
        return x[row * params.cols + column];
    }
    return 0.0;
}

fn input4(row: u32, column: u32) -> vec4<f32> {
    return vec4(input_at(row, column), input_at(row, column + 1u), input_at(row, column + 2u), input_at(row, column + 3u));
}

fn input8(row: u32, i: u32) -> Eight {
    return Eight(input4(row, i * 8u), input4(row, i * 8u + 4u));
}
