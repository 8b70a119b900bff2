//! `cell`: cells with a process for each backend.

mod anew;
mod backend;
mod certs;
mod controller;
mod engine;
mod founding;
mod home;
mod maintenance;
mod order_error;
mod orders;
pub(crate) mod places;
mod program;
mod rehearsal;
mod resize;
mod restore;
mod revival;
mod room;
mod spare;
mod spares;
mod spread;
pub(crate) mod status;
pub(crate) mod up;

use crate::args::{CellAddress, CellCommand};
use crate::failure::{Failure, Outcome, print_json, print_line};
use bytesize::ByteSize;
use orders::Order;
use std::path::Path;
use std::process::ExitCode;
use trefoil_client::CorpusFormat;

pub(crate) fn run(command: CellCommand) -> Outcome {
    match command {
        CellCommand::Up(args) => up::run(args),
        CellCommand::Status { address, json } => status::run(&address, json),
        CellCommand::Memory {
            address,
            limit,
            json,
        } => memory(&address, limit, json),
        CellCommand::Flush { address, json } => flush(&address, json),
        CellCommand::Reload {
            address,
            load,
            clear_first,
        } => reload(&address, &load, clear_first),
        CellCommand::Certs(command) => certs::run(command),
        CellCommand::RestoreConfig(args) => restore::run(&args),
        CellCommand::Restart {
            backends,
            address,
            without_room,
            json,
        } => {
            let order = Order::Restart {
                backends,
                without_room,
            };
            orders::give(&address, &order, json)
        }
        CellCommand::Upgrade {
            binary,
            address,
            without_room,
            json,
        } => {
            // `cell up` may run in another directory.
            let binary = std::path::absolute(&binary).map_err(Failure::of)?;
            let order = Order::Upgrade {
                binary,
                without_room,
            };
            orders::give(&address, &order, json)
        }
        CellCommand::Drain {
            backend,
            address,
            without_room,
            json,
        } => {
            let order = Order::Drain {
                backend,
                without_room,
            };
            orders::give(&address, &order, json)
        }
        CellCommand::Undrain {
            backend,
            address,
            json,
        } => orders::give(&address, &Order::Undrain { backend }, json),
        CellCommand::Resize(args) => {
            orders::give(&args.address, &Order::of_resize(&args)?, args.json)
        }
        CellCommand::Spare(args) => spare::run(args),
        CellCommand::Controller(args) => controller::run(&args),
        CellCommand::Backend(args) => backend::run(args),
    }
}

#[derive(serde::Serialize)]
struct MemoryReport {
    backend: u32,
    limit_bytes: u64,
    resident_bytes: Option<u64>,
    error: Option<String>,
}

fn memory(address: &CellAddress, limit: ByteSize, json: bool) -> Outcome {
    let cell = crate::connect::cell(address)?;
    let bytes = limit.as_u64();
    let mut code = ExitCode::SUCCESS;
    let mut reports = Vec::new();
    for (backend, result) in cell.set_memory_limit(bytes) {
        let (resident_bytes, error) = match result {
            Ok(resident) => (Some(resident), None),
            Err(error) => {
                eprintln!("trefoil: backend {backend}: {error}");
                code = ExitCode::FAILURE;
                (None, Some(error))
            }
        };
        reports.push(MemoryReport {
            backend,
            limit_bytes: bytes,
            resident_bytes,
            error,
        });
    }
    if json {
        print_json(&reports)?;
    } else {
        for report in &reports {
            if let Some(resident) = report.resident_bytes {
                let resident = ByteSize::b(resident);
                print_line(&format!(
                    "backend {}: limit {limit}, resident {resident}",
                    report.backend
                ))?;
            }
        }
    }
    Ok(code)
}

#[derive(serde::Serialize)]
struct FlushReport {
    config_id: u32,
    floor: String,
    backends_flushed: usize,
    backends_down: usize,
}

/// Flushes the cell and says how far that went.
fn flush(address: &CellAddress, json: bool) -> Outcome {
    let cell = crate::connect::cell(address)?;
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_ms = since.map_err(Failure::of)?.as_millis() as u64;
    let flushed = cell.flush(now_ms).map_err(Failure::of)?;
    let report = FlushReport {
        config_id: flushed.config_id,
        floor: flushed.floor.to_string(),
        backends_flushed: flushed.backend_count,
        backends_down: cell.config().backends.len() - flushed.backend_count,
    };
    if json {
        print_json(&report)?;
    } else {
        print_line(&format!(
            "flushed on {} backend{} ({} down), config id {}",
            report.backends_flushed,
            if report.backends_flushed == 1 {
                ""
            } else {
                "s"
            },
            report.backends_down,
            report.config_id
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Loads `file` into an immutable cell and says what was loaded.
fn reload(address: &CellAddress, file: &Path, clear_first: bool) -> Outcome {
    let cell = crate::connect::cell(address)?;
    let loaded = cell
        .reload(file, CorpusFormat::of(file), clear_first)
        .map_err(Failure::of)?;
    print_line(&format!(
        "{} lines loaded, {} items on all backends together, config id {}",
        loaded.lines, loaded.items, loaded.config_id
    ))?;
    for (backend, why) in &loaded.behind {
        eprintln!(
            "trefoil: backend {backend} has not said that it serves the new corpus ({why}); it serves nothing older, and gets it by itself: see `trefoil cell status`"
        );
    }
    Ok(ExitCode::SUCCESS)
}
