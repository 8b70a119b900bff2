//! `bench linked`.

use super::{need_two_cores, program};
use crate::args::{LinkedBenchArgs, LinkedProtocol};
use crate::failure::{Failure, Outcome, print_json, print_line};
use std::process::ExitCode;
use trefoil_bench::linked::{LinkedOptions, Protocol, Variant, linked};

pub(super) fn run(args: &LinkedBenchArgs) -> Outcome {
    let options = options(args)?;
    need_two_cores()?;
    let report = linked(&options, &mut |what| eprintln!("{what}")).map_err(Failure::of)?;
    report.write(&args.out).map_err(Failure::of)?;
    if args.json {
        print_json(&report)?;
    } else {
        print_line(&report.tables())?;
    }
    eprintln!("report and plots are in {}", args.out.display());
    let variants = report.cases.iter().flat_map(|case| &case.variants);
    for error in variants.filter_map(|variant| variant.first_error.as_ref()) {
        eprintln!("trefoil: {error}");
    }
    Ok(if report.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn options(args: &LinkedBenchArgs) -> Result<LinkedOptions, Failure> {
    let usage = |what: String| Err(Failure::Usage(what));
    let mut options = LinkedOptions::new(&program()?);
    if args.quick {
        options = options.quick();
    }
    if !args.variant.is_empty() {
        options.variants.clear();
        for name in &args.variant {
            match Variant::from_name(name) {
                Some(variant) => options.variants.push(variant),
                None => {
                    let names = Variant::ALL.map(Variant::name).join(", ");
                    return usage(format!("no form is called {name}; there are {names}"));
                }
            }
        }
    }
    if !args.size.is_empty() {
        let used = if args.used.is_empty() {
            &[100][..]
        } else {
            &args.used
        };
        let cases = args
            .size
            .iter()
            .flat_map(|&len| used.iter().map(move |&part| (len, part)));
        options.cases = cases.collect();
    }
    if options
        .cases
        .iter()
        .any(|&(len, _)| !(100..=8_000_000).contains(&len))
    {
        return usage("--size has to be from 100 to 8000000".into());
    }
    if options
        .cases
        .iter()
        .any(|&(_, part)| !(1..=100).contains(&part))
    {
        return usage("--used has to be from 1 to 100".into());
    }
    if !(1..=50).contains(&args.servers) {
        return usage("--servers has to be from 1 to 50".into());
    }
    options.protocol = match args.protocol {
        LinkedProtocol::Frames => Protocol::Frames,
        LinkedProtocol::Grpc => Protocol::Grpc,
    };
    options.servers_count = args.servers;
    options.runs = args.runs.unwrap_or(options.runs);
    options.seconds = args.seconds.unwrap_or(options.seconds);
    for (name, number) in [("--seconds", options.seconds), ("--rate", args.rate)] {
        if number <= 0.0 || !number.is_finite() {
            return usage(format!("{name} has to be above 0"));
        }
    }
    options.rate_factor = args.rate;
    options.overwrites = args.overwrite;
    options.loopback = args.loopback;
    Ok(options)
}
