//! Every backend against the formulas and mlx-lm's answers. One program, so that what is generic
//! over backends is compiled once and GPU tests share devices.

mod ahead;
mod common;
mod devices;
mod engine;
mod forms;
mod gpu;
mod models;
mod operations;
mod pools;
mod schedule;
