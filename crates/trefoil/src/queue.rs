//! `queue`: an ordered queue on this host, served and used.

use crate::args::{
    QueueCommand, QueueFlush, QueueServeArgs, QueueService, QueueSocket, QueueValueArgs,
};
use crate::failure::{Failure, Outcome, print_line};
use crate::operations::{read_value, write_value};
use crate::signals::Signals;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;
use trefoil_cell::runtime_dir;
use trefoil_queue::{Client, ClientError, ServeError, ServeOptions, ServiceKind};

pub(crate) fn run(command: QueueCommand) -> Outcome {
    match command {
        QueueCommand::Serve(args) => serve(&args),
        QueueCommand::Get(args) => {
            let mut client = connect(&args.at)?;
            match client.get(args.key.as_bytes()).map_err(failure)? {
                Some(value) => {
                    write_value(value)?;
                    Ok(ExitCode::SUCCESS)
                }
                None => {
                    eprintln!("trefoil: no value");
                    Ok(ExitCode::FAILURE)
                }
            }
        }
        QueueCommand::Set(args) => {
            let value = value_of(&args)?;
            let done = connect(&args.at)?.set(args.key.as_bytes(), &value);
            done.map_err(failure)?;
            Ok(ExitCode::SUCCESS)
        }
        QueueCommand::Erase(args) => {
            let done = connect(&args.at)?.erase(args.key.as_bytes());
            done.map_err(failure)?;
            Ok(ExitCode::SUCCESS)
        }
        QueueCommand::Add(args) => {
            let sum = connect(&args.at)?.add(args.key.as_bytes(), args.by);
            print_line(&sum.map_err(failure)?.to_string())?;
            Ok(ExitCode::SUCCESS)
        }
        QueueCommand::Append(args) => {
            let value = value_of(&args)?;
            let done = connect(&args.at)?.append(args.key.as_bytes(), &value);
            done.map_err(failure)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What a request came to, by whose fault.
fn failure(error: ClientError) -> Failure {
    match error {
        ClientError::Request(_) => Failure::Usage(error.to_string()),
        _ => Failure::of(error),
    }
}

fn value_of(args: &QueueValueArgs) -> Result<Vec<u8>, Failure> {
    match (&args.value, &args.file) {
        (Some(value), _) => Ok(value.as_bytes().to_vec()),
        (None, Some(path)) => read_value(path),
        (None, None) => Ok(Vec::new()),
    }
}

fn socket(at: &QueueSocket) -> Result<PathBuf, Failure> {
    match &at.socket {
        Some(path) => Ok(path.clone()),
        None => Ok(runtime_dir().map_err(Failure::of)?.join("queue.sock")),
    }
}

fn connect(at: &QueueSocket) -> Result<Client, Failure> {
    Client::connect(&socket(at)?).map_err(Failure::of)
}

fn serve(args: &QueueServeArgs) -> Outcome {
    crate::logging::start();
    let options = ServeOptions {
        socket: socket(&args.at)?,
        users: crate::users::policy(&args.allow_user)?,
        service: match args.service {
            QueueService::Cache => ServiceKind::Cache,
            QueueService::Rocksdb => ServiceKind::Rocksdb,
        },
        folder: args.folder.clone(),
        is_durable: args.durable,
        journal_len: args.journal.as_u64(),
        flush: match args.flush {
            QueueFlush::Direct => trefoil_queue::Flush::Direct,
            QueueFlush::Cached => trefoil_queue::Flush::Cached,
        },
        memory: args.memory.as_u64(),
        library: args.library.clone(),
        rocksdb: trefoil_queue::DbOptions::default(),
        queue: trefoil_queue::Options {
            slot_count: args.slots,
            client_count_max: args.clients,
            spin: args.spin,
            nap: args.nap,
            ..trefoil_queue::Options::default()
        },
    };
    let signals = Signals::new()?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    // It waits for a signal until the process ends.
    std::thread::spawn(move || {
        signals.wait(&Notify::new(), || Ok(()));
        told.store(true, Ordering::Relaxed);
    });
    let ready = serde_json::json!({
        "socket": options.socket,
        "service": options.service.name(),
        "durable": options.is_durable,
        "pids": [std::process::id()],
    });
    let mut told = Ok(());
    let served = trefoil_queue::serve(&options, &stop, || {
        told = print_line(&format!("ready {ready}"));
        if told.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
    });
    served.map_err(|error| match error {
        ServeError::Impossible(_) | ServeError::SetUp(_) => Failure::Usage(error.to_string()),
        _ => Failure::of(error),
    })?;
    told?;
    Ok(ExitCode::SUCCESS)
}
