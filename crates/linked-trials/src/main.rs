//! Trials of the linked store: what it promises, shown by real processes that are
//! killed, stopped, cut off and replaced while clients go on.
//!
//! ```text
//!  main ─┬─ histories   what 16 clients are told of a few hot lists, held against
//!        │              linearizability
//!        ├─ outages     assigners and etcd go away under load
//!        ├─ copies      streams of copies are broken under load
//!        ├─ fresh       a database changes and fails over behind them
//!        └─ server, assigner, relay    the processes themselves, of this same program
//!
//!  fleet ── servers (processes) ◄── relays of the links ◄── servers, callers
//!                                        │ cut, hole
//! ```
//!
//! A trial judges itself: its last line begins with `verdict:`, beside each figure stands
//! what is wanted, and the exit code is 1 if something else was found.

mod assigner;
mod copies;
mod fleet;
mod fresh;
mod histories;
mod outages;
mod pauses;
mod server;
mod verdict;

#[allow(missing_docs, unreachable_pub, clippy::all)]
mod v1 {
    //! Generated from `proto/lists.proto`.
    tonic::include_proto!("lists.v1");
}

use clap::{Parser, Subcommand};
use std::error::Error;
use std::process::ExitCode;

/// What goes wrong with a trial itself.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// The corpus of all trials.
pub(crate) const CORPUS: &str = "lists";

/// Shows what the linked store promises, by processes that are killed and cut off
#[derive(Parser, Debug)]
struct Args {
    #[command(subcommand)]
    trial: Trial,
}

#[derive(Subcommand, Debug)]
enum Trial {
    /// Strong replicas: whether what clients are told of hot keys is linearizable
    Histories(histories::Args),
    /// Strong replicas: assigners and etcd go away, come back, and are replaced
    Outages(outages::Args),
    /// Eventual replicas: streams of copies break under load
    Copies(copies::Args),
    /// Linklets before a database: its relay is killed, and it fails over to less
    Fresh(fresh::Args),
    #[command(hide = true)]
    Relay(fresh::RelayArgs),
    #[command(hide = true)]
    Server(server::Args),
    #[command(hide = true)]
    Assigner(assigner::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Args::parse().trial {
        Trial::Histories(args) => histories::run(args).await,
        Trial::Outages(args) => outages::run(args).await,
        Trial::Copies(args) => copies::run(args).await,
        Trial::Fresh(args) => fresh::run(args).await,
        Trial::Relay(args) => {
            end_with_parent();
            fresh::relay(args).await.map(|()| true)
        }
        Trial::Server(args) => {
            end_with_parent();
            server::run(args).await.map(|()| true)
        }
        Trial::Assigner(args) => {
            end_with_parent();
            assigner::run(args).await.map(|()| true)
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("linked-trials: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A trial that is killed leaves no processes behind, not even stopped ones.
fn end_with_parent() {
    let signal = Some(rustix::process::Signal::KILL);
    // Without it they outlive a trial that is killed, and nothing else.
    let _ = rustix::process::set_parent_process_death_signal(signal);
}
