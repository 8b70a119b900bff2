//! The client against backends whose answers the tests choose, and against real
//! ones in this process.

mod asynchronous;
mod batches;
mod calls;
mod carriers;
mod committing;
mod committing_beside;
mod crowd;
mod ending;
mod fake;
mod faults;
mod fills;
mod moving;
mod real;
mod submitting;
mod touches;
