// Four values of four words of a cache of f32: all of them.
fn quad_of(words: vec4<u32>, k: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(words);
}
