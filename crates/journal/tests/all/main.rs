//! The journal under a simulator that cuts the power, and over real files.

mod files;
mod mutants;
mod power;
mod sim;
