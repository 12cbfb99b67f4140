//! .
pub mod models;
