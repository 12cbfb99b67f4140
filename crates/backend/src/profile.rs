//! Where the time goes.

use std::time::Duration;

/// Time spent in one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OperationTime {
    /// The operation's name.
    pub name: &'static str,
    /// How often it ran.
    pub calls: u64,
    /// How long it took in all.
    pub time: Duration,
}
