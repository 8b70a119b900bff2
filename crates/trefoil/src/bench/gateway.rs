//! `bench gateway`.

use super::{need_two_cores, program};
use crate::args::{GatewayBenchArgs, Peer};
use crate::failure::{Failure, Outcome, print_json, print_line};
use std::process::ExitCode;
use trefoil_bench::gateway::{Dialect, GatewayOptions, gateway};

pub(super) fn run(args: &GatewayBenchArgs) -> Outcome {
    need_two_cores()?;
    if args.seconds <= 0.0 || !args.seconds.is_finite() {
        return Err(Failure::Usage("--seconds has to be above 0".into()));
    }
    let dialect = match args.peer {
        Peer::Memcached => Dialect::Memcached,
        Peer::Redis => Dialect::Redis,
    };
    let options = GatewayOptions {
        with_cell: !args.no_cell,
        only: args.only.clone(),
        runs: args.runs,
        seconds: args.seconds,
        keys_count: args.keys,
        value_lens: args.value_size.clone(),
        cores: (args.client_core, args.server_core),
        ..GatewayOptions::new(&program()?, dialect)
    };
    let report = gateway(&options, &mut |what| eprintln!("{what}")).map_err(Failure::of)?;
    if args.json {
        print_json(&report)?;
    } else {
        print_line(&report.table())?;
    }
    Ok(ExitCode::SUCCESS)
}
