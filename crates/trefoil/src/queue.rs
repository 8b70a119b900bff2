//! `queue`: an ordered queue on this host, served and used.

use crate::args::{
    QueueCommand, QueueEngineArgs, QueueFlush, QueueServeArgs, QueueServer, QueueService,
    QueueSocket, QueueValueArgs,
};
use crate::engine::{Service, Setup, engine_options};
use crate::failure::{Failure, Outcome, print_line};
use crate::operations::{read_value, write_value};
use crate::signals::Signals;
use rustix::fs::statfs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;
use trefoil_backend::{UserPolicy, raise_descriptor_limit};
use trefoil_cell::{RpcAddress, runtime_dir};
use trefoil_queue::{Carrier, Client, ClientError, ServeError, ServeOptions, ServiceKind, beside};
use trefoil_softnic::engine::Admits;
use trefoil_softnic::{DatagramUse, Engine, EngineAddress, EngineOptions, Who};
use trefoil_tls::{CertFiles, CertUse, Right, Role, Tls};

/// What a file system in memory calls itself.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// Its end of a client's bell, and what stands between two calls while it is let in.
const CLIENT_DESCRIPTORS: u64 = 2;
/// What a server has open otherwise.
const OTHER_DESCRIPTORS: u64 = 64;
/// The same with RocksDB, which closes no file of its own by itself.
const ROCKSDB_DESCRIPTORS: u64 = 16 << 10;

pub(crate) fn run(command: QueueCommand) -> Outcome {
    match command {
        QueueCommand::Serve(args) => serve(&args),
        QueueCommand::Engine(args) => engine(args),
        QueueCommand::Get(args) => {
            let mut client = connect(&args.server)?;
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
            let done = connect(&args.server)?.set(args.key.as_bytes(), &value);
            done.map_err(failure)?;
            Ok(ExitCode::SUCCESS)
        }
        QueueCommand::Erase(args) => {
            let done = connect(&args.server)?.erase(args.key.as_bytes());
            done.map_err(failure)?;
            Ok(ExitCode::SUCCESS)
        }
        QueueCommand::Add(args) => {
            let sum = connect(&args.server)?.add(args.key.as_bytes(), args.by);
            print_line(&sum.map_err(failure)?.to_string())?;
            Ok(ExitCode::SUCCESS)
        }
        QueueCommand::Append(args) => {
            let value = value_of(&args)?;
            let done = connect(&args.server)?.append(args.key.as_bytes(), &value);
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

fn servers(users: &[String]) -> Result<UserPolicy, Failure> {
    crate::users::policy(users).map_err(|failure| match failure {
        Failure::Usage(said) => Failure::Usage(said.replace("--allow-user", "--server-user")),
        other => other,
    })
}

fn connect(to: &QueueServer) -> Result<Client<Box<dyn Carrier>>, Failure> {
    let Some(engine) = &to.engine else {
        let servers = servers(&to.server_user)?;
        let client = Client::connect_to(&socket(&to.at)?, &servers).map_err(Failure::of)?;
        return Ok(client.boxed());
    };
    let address = crate::serve::tcp_address("--engine", engine)?;
    let read = |directory| Tls::read(&CertFiles::in_directory(directory), CertUse::Client);
    let tls = to.certs.as_deref().map(read).transpose();
    let tls = tls.map_err(Failure::of)?;
    let server = RpcAddress::Tcp {
        host: address.ip().to_string(),
        port: address.port(),
    };
    let token = match tls {
        Some(_) => None,
        None => trefoil_cell::credentials(&server).token(),
    };
    let host = engine
        .rsplit_once(':')
        .map_or(&engine[..], |(host, _)| host);
    let engine = EngineAddress {
        address,
        host: host.trim_matches(['[', ']']).to_owned(),
        tls,
        datagrams: DatagramUse::No,
        token: token.map_or_else(|| Arc::from([]), |token| token.as_bytes().into()),
    };
    let client = Client::connect_by_engine(engine, to.queue).map_err(Failure::of)?;
    Ok(client.boxed())
}

/// Whether somebody that was let in may place requests: a certificate of a backend alone is
/// none that writes.
fn may_write(who: &Who) -> bool {
    match who {
        Who::Token(_) => true,
        Who::Certificate(caller) => caller.roles.has(Role::Client) || caller.roles.has(Role::Admin),
    }
}

fn engine(args: QueueEngineArgs) -> Outcome {
    crate::logging::start();
    let tls = crate::serve::server_tls(args.certs.as_deref())?;
    let sockets = match args.sockets.is_empty() {
        true => vec![runtime_dir().map_err(Failure::of)?.join("queue.sock")],
        false => args.sockets,
    };
    let servers = servers(&args.server_user)?;
    let setup = Setup {
        listen: crate::serve::tcp_address("--listen", &args.listen)?,
        tls: tls.clone(),
        token_file: args.token_file,
        token_right: Right::Admin,
        is_plain: args.plaintext,
        options: EngineOptions {
            spin: args.spin.into(),
            ..engine_options(args.size)?
        },
    };
    let signals = Signals::new()?;
    let told = sockets.clone();
    let lanes_max = args.lanes.map(NonZeroUsize::get);
    let service = Service::start_by(setup, move |listener, (tls, admission), options, _| {
        let known = Arc::clone(&admission);
        let admits: Admits = Arc::new(move |who| known.allows(who, Right::Read));
        let writes: Admits =
            Arc::new(move |who| may_write(who) && admission.allows(who, Right::Write));
        let queues = beside::queues(sockets, servers, writes, lanes_max);
        Engine::start_for_queues(listener, (tls, admits), queues, options)
    })?;
    let ready = serde_json::json!({
        "engine": service.engine().address().to_string(),
        "queues": told,
        "pids": [std::process::id()],
    });
    print_line(&format!("ready {ready}"))?;
    signals.wait(&Notify::new(), || crate::serve::read_again(tls.as_ref()));
    Ok(ExitCode::SUCCESS)
}

/// Files that a server has open besides a few for each client: RocksDB keeps its own open.
fn raise_descriptors(args: &QueueServeArgs) {
    let files = match args.service {
        QueueService::Cache => OTHER_DESCRIPTORS,
        QueueService::Rocksdb => ROCKSDB_DESCRIPTORS,
    };
    let wanted = (args.clients as u64).saturating_mul(CLIENT_DESCRIPTORS);
    if let Err(most) = raise_descriptor_limit(wanted.saturating_add(files)) {
        tracing::warn!(
            "this process may have {most} files open, which may be too few for {} clients and \
             the service's files: raise the limit (ulimit -n)",
            args.clients
        );
    }
}

/// A file system in memory makes nothing persistent.
fn warn_of_memory(options: &ServeOptions) {
    let folder = match &options.folder {
        Some(folder) if options.is_durable => folder,
        _ => return,
    };
    let is_memory = statfs(folder).is_ok_and(|found| found.f_type as u64 == TMPFS_MAGIC);
    if is_memory {
        tracing::warn!(
            "{} is in memory (tmpfs): what a durable queue acknowledges there survives its \
             process, and no power cut; choose a --folder on a disk",
            folder.display()
        );
    }
}

fn serve(args: &QueueServeArgs) -> Outcome {
    crate::logging::start();
    raise_descriptors(args);
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
        warn_of_memory(&options);
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
