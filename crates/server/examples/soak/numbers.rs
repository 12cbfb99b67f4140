//! Numbers for the report.

use serde_json::{Value as Json, json};

/// The value below which so much of all lies; none of nothing.
pub fn quantile(values: &mut [f32], part: f64) -> Json {
    values.sort_by(f32::total_cmp);
    let index = (part * values.len() as f64) as usize;
    values
        .get(index.min(values.len().saturating_sub(1)))
        .map_or(Json::Null, |value| rounded(f64::from(*value)))
}

pub fn rounded(value: f64) -> Json {
    json!((value * 1e4).round() / 1e4)
}
