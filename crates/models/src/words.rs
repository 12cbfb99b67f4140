//! Words for people.

/// A number of things: `1 layer`, `2 layers`.
pub fn counted(n: usize, thing: &str) -> String {
    if n == 1 { format!("1 {thing}") } else { format!("{n} {thing}s") }
}
