//! What `pleiad bench` is made of: `target` finds or makes the model, `measure` runs it, `bandwidth` asks the memory what it
//! could give, `report` says what was found, `svg` draws it.

mod bandwidth;
mod measure;
mod memory;
mod report;
mod svg;
mod target;

pub use bandwidth::Bandwidth;
pub use measure::{Work, measure, measuring};
pub use memory::{large_pages, peak_memory};
pub use report::Report;
pub use svg::draw;
pub use target::Target;
