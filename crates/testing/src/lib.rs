//! What tests of every crate share: requirements that a machine may lack, and combinations that
//! only `scripts/check --full` runs.

use std::env;
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Skips a test that needs something this machine lacks, or fails it if `PLEIAD_REQUIRE` names it:
/// a comma list of `gpu` and `templates`.
///
/// # Panics
/// If the requirement is named.
#[track_caller]
pub fn skipped(requirement: &str, why: impl Display) {
    let named = env::var("PLEIAD_REQUIRE").unwrap_or_default();
    assert!(!named.split(',').any(|name| name.trim() == requirement), "{requirement} is required: {why}");
    println!("skipped: {why}");
}

/// Whether tests run every combination (`PLEIAD_FULL`, which `scripts/check --full` sets) or each
/// kernel once.
pub fn full() -> bool {
    env::var_os("PLEIAD_FULL").is_some()
}

/// The folder of published chat templates, which are not copied into the repository:
/// `PLEIAD_TEMPLATES`, or `../shared/templates` beside the repository. `None` skips the test.
///
/// # Panics
/// If there is no such folder, and templates are required.
#[track_caller]
pub fn templates() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/templates");
    let folder = env::var_os("PLEIAD_TEMPLATES").map_or_else(beside, PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    skipped("templates", format!("no {}, which holds the published chat templates", folder.display()));
    None
}
