//! The `trefoil` command: parses the command line and hands over.
//!
//! Exit codes: 0 fine, 1 failed (a miss is a failed `get`), 2 usage.

mod args;
mod assigner;
mod bench;
mod cell;
mod demo;
mod door;
mod failure;
mod gateway;
mod logging;
mod operations;
mod serve;
mod settings;
mod signals;
mod sim;
mod top;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Gateway(args) => gateway::run(args),
        Command::Cell(command) => cell::run(command),
        Command::Get(args) => operations::get(args),
        Command::Set(args) => operations::set(args),
        Command::Erase(args) => operations::erase(args),
        Command::Cas(args) => operations::cas(args),
        Command::Top(args) => top::run(args),
        Command::Bench(command) => bench::run(command),
        Command::Assigner(args) => assigner::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Demo(args) => demo::run(args),
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("trefoil: {failure}");
            failure.code()
        }
    }
}
