//! The `trefoil` command: parses the command line and hands over.
//!
//! Exit codes: 0 fine, 1 failed (a miss is a failed `get`), 2 usage.

mod args;
#[cfg(feature = "linked")]
mod assigner;
mod backoff;
#[cfg(feature = "bench")]
mod bench;
mod cell;
mod connect;
#[cfg(feature = "bench")]
mod demo;
mod doctor;
mod door;
mod engine;
mod failure;
#[cfg(any(feature = "top", feature = "linked"))]
mod figures;
mod fixed;
mod gateway;
#[cfg(feature = "bench")]
mod histories;
#[cfg(feature = "linked")]
mod linked;
mod logging;
mod operations;
#[cfg(feature = "queue")]
mod queue;
#[cfg(feature = "linked")]
mod relay;
mod serve;
mod settings;
mod signals;
#[cfg(feature = "sim")]
mod sim;
mod supervised;
#[cfg(feature = "top")]
mod top;
mod users;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    // A backend is started by a descriptor of its program: `top` would call it by the
    // descriptor's number.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"trefoil");
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Serve(args) => serve::run(*args),
        Command::Gateway(args) => gateway::run(args),
        Command::Engine(args) => engine::run(args),
        #[cfg(feature = "linked")]
        Command::Relay(args) => relay::run(args),
        Command::Cell(command) => cell::run(command),
        Command::Get(args) => operations::get(args),
        Command::Set(args) => operations::set(args),
        Command::Erase(args) => operations::erase(args),
        Command::Cas(args) => operations::cas(args),
        Command::Doctor(args) => doctor::run(&args),
        #[cfg(feature = "top")]
        Command::Top(args) => top::run(args),
        #[cfg(feature = "bench")]
        Command::Bench(command) => bench::run(command),
        #[cfg(feature = "linked")]
        Command::Assigner(args) => assigner::run(args),
        #[cfg(feature = "linked")]
        Command::Linked(command) => linked::run(command),
        #[cfg(feature = "queue")]
        Command::Queue(command) => queue::run(command),
        #[cfg(feature = "sim")]
        Command::Sim(args) => sim::run(args),
        #[cfg(feature = "bench")]
        Command::Histories(args) => histories::run(args),
        #[cfg(feature = "bench")]
        Command::HistoryWorker => histories::worker(),
        #[cfg(feature = "bench")]
        Command::Demo(args) => demo::run(args),
        #[cfg(not(feature = "bench"))]
        Command::Bench(_) | Command::Demo(_) | Command::Histories(_) => left_out("bench"),
        #[cfg(not(feature = "linked"))]
        Command::Relay(_) | Command::Assigner(_) | Command::Linked(_) => left_out("linked"),
        #[cfg(not(feature = "queue"))]
        Command::Queue(_) => left_out("queue"),
        #[cfg(not(feature = "sim"))]
        Command::Sim(_) => left_out("sim"),
        #[cfg(not(feature = "top"))]
        Command::Top(_) => left_out("top"),
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("trefoil: {failure}");
            failure.code()
        }
    }
}

/// A command that this build was made without.
#[cfg(not(all(
    feature = "top",
    feature = "bench",
    feature = "linked",
    feature = "queue",
    feature = "sim"
)))]
fn left_out(feature: &str) -> failure::Outcome {
    Err(failure::Failure::Usage(format!(
        "this build is without the feature `{feature}`: build it with \
         `cargo build --release -p trefoil --features {feature}`"
    )))
}
