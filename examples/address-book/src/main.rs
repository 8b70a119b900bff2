//! The address book's command line.

use address_book::demo::{self, DemoArgs};
use address_book::serve::{self, ServeArgs, ServeError};
use clap::Parser;
use std::process::ExitCode;

/// A contacts and calendar service, in the forms that hot state can have
#[derive(Parser, Debug)]
#[command(version)]
enum Command {
    /// Run one server
    Serve(Box<ServeArgs>),
    /// Five stateful servers under load: a hot key, a kill, a newcomer, an orderly stop
    Demo(DemoArgs),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Serve(args) => serve::run(&args),
        Command::Demo(args) => demo::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("address-book: {error}");
            match error {
                ServeError::Usage(_) => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
