//! `bench gateway`.

use super::{need_two_cores, peer, program};
use crate::args::GatewayBenchArgs;
use crate::failure::{Failure, Outcome, print_json, print_line};
use std::process::ExitCode;
use trefoil_bench::gateway::{GatewayOptions, gateway};

pub(super) fn run(args: &GatewayBenchArgs) -> Outcome {
    if args.seconds <= 0.0 || !args.seconds.is_finite() {
        return Err(Failure::Usage("--seconds has to be above 0".into()));
    }
    need_two_cores()?;
    let options = GatewayOptions {
        with_cell: !args.no_cell,
        only: args.only.clone(),
        runs: args.runs,
        seconds: args.seconds,
        keys_count: args.keys,
        value_lens: args.value_size.clone(),
        cores: (args.client_core, args.server_core),
        ..GatewayOptions::new(&program()?, peer(args.peer))
    };
    let report = gateway(&options, &mut |what| eprintln!("{what}")).map_err(Failure::of)?;
    if args.json {
        print_json(&report)?;
    } else {
        print_line(&report.table())?;
    }
    Ok(ExitCode::SUCCESS)
}
