//! The ordered queue under a simulator, and its sides in real threads and processes.

mod cell;
mod conformance;
mod cuts;
mod delegates;
mod durable;
mod failing;
mod forged;
mod held_up;
mod marks;
mod mutants;
mod promise;
mod real;
mod recorder;
mod sim;
