//! `cell certs`: a private authority, and the certificates that it issues.
//!
//! ```text
//! DIR/          0700
//!   ca.pem      the authority's certificate: everybody's
//!   ca-key.pem  its key: whoever has it can issue certificates
//!   NAME/       0700: what one server or client gets
//!     ca.pem  cert.pem  key.pem
//! ```
//! All files have mode 0600.

mod authority;
mod folder;

use crate::args::{CertsCommand, InitArgs, IssueArgs, RenewArgs};
use crate::failure::{Failure, Outcome, print_json, print_line};
use authority::{Authority, Wanted};
use folder::Folder;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;
use trefoil_tls::{Certificate, Role, time_text};

pub(super) fn run(command: CertsCommand) -> Outcome {
    match command {
        CertsCommand::Init(args) => init(&args),
        CertsCommand::Issue(args) => issue(&args),
        CertsCommand::Renew(args) => renew(&args),
        CertsCommand::List { dir, json } => list(&dir.dir, json),
    }
}

fn init(args: &InitArgs) -> Outcome {
    let dir = &args.dir.dir;
    let folder = Folder::create(dir)?;
    let made = authority::make(&args.name, args.days)?;
    folder.put_authority(&made.certificate, &made.key)?;
    let authority = Authority::open(&folder)?;
    let shown = dir.display();
    if args.json {
        let mut report = report(authority.certificate());
        report["directory"] = json!(folder.path());
        print_json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Certificate { name, ends_s, .. } = authority.certificate();
    print_line(&format!(
        "made the authority \"{name}\" in {shown}, valid until {}\n\
         keep {shown}/ca-key.pem to yourself: whoever has it can make certificates for your cells\n\
         next, a certificate for each server and for each client:\n\
         \x20 trefoil cell certs issue --dir {shown} --role backend --name SERVER --host NAME-OR-ADDRESS\n\
         \x20 trefoil cell certs issue --dir {shown} --role client --name CLIENT",
        time_text(*ends_s)
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn issue(args: &IssueArgs) -> Outcome {
    let dir = &args.dir.dir;
    folder::check_name(&args.name)?;
    if args.role == Role::Backend && args.host.is_empty() {
        return Err(Failure::Usage(
            "a backend's certificate needs the names and addresses by which clients reach it: \
             give --host, once for each"
                .into(),
        ));
    }
    let folder = Folder::open(dir)?;
    if let Some(known) = folder.issued(&args.name) {
        let known = known?;
        return Err(Failure::Failed(format!(
            "{} is there already ({}, until {}): renew it by `trefoil cell certs renew --dir {} \
             {}`, or choose another name",
            folder.place(&args.name).display(),
            known.roles,
            time_text(known.ends_s),
            dir.display(),
            args.name,
        )));
    }
    let authority = Authority::open(&folder)?;
    let mut wanted = Wanted {
        name: args.name.clone(),
        hosts: args.host.clone(),
        roles: trefoil_tls::Roles::default(),
        corpora: trefoil_tls::Corpora::of(args.corpus.iter().cloned()),
        days: args.days,
    };
    wanted.roles.insert(args.role);
    let issued = authority.issue(&wanted)?;
    let certificate = folder.put_issued(&args.name, &issued, false)?;
    let place = folder.place(&args.name);
    if args.json {
        print_json(&report_in(&place, &certificate))?;
        return Ok(ExitCode::SUCCESS);
    }
    print_line(&format!("issued {}", line(&place, &certificate)))?;
    print_line(&next(&place, args.role, &certificate))?;
    print_line(&format!(
        "before it ends: trefoil cell certs renew --dir {} {}; files that are copied over those \
         before are taken by running processes",
        dir.display(),
        args.name
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What the owner of a new certificate does with it.
fn next(place: &Path, role: Role, certificate: &Certificate) -> String {
    let copy = format!(
        "next: copy {} to its machine (files of the user who runs it there, mode 0600), and run",
        place.display()
    );
    match role {
        Role::Backend => {
            let host = certificate.hosts.first().map_or("HOST", String::as_str);
            let host = match host.contains(':') {
                true => format!("[{host}]"),
                false => host.to_owned(),
            };
            format!("{copy}\n  trefoil serve --listen {host}:7411 --certs COPY")
        }
        Role::Client => format!("{copy}\n  trefoil get KEY --cell SERVER:7411 --certs COPY"),
        Role::Admin => format!("{copy}\n  trefoil cell status --cell SERVER:7411 --certs COPY"),
    }
}

fn renew(args: &RenewArgs) -> Outcome {
    let folder = Folder::open(&args.dir.dir)?;
    let authority = Authority::open(&folder)?;
    let names = match args.all {
        true => folder.names()?,
        false => args.names.clone(),
    };
    let mut reports = Vec::new();
    for name in names {
        folder::check_name(&name)?;
        let place = folder.place(&name);
        let known = folder.issued(&name).unwrap_or_else(|| {
            Err(Failure::Failed(format!(
                "{} is not there: `trefoil cell certs list --dir {}` shows what is",
                place.display(),
                args.dir.dir.display()
            )))
        })?;
        let wanted = Wanted {
            name: known.name,
            hosts: known.hosts,
            roles: known.roles,
            corpora: known.corpora,
            days: args.days,
        };
        let certificate = folder.put_issued(&name, &authority.issue(&wanted)?, true)?;
        if args.json {
            reports.push(report_in(&place, &certificate));
        } else {
            print_line(&format!("renewed {}", line(&place, &certificate)))?;
        }
    }
    if args.json {
        print_json(&reports)?;
    } else {
        print_line(
            "next: copy each over its files on its machine; processes take them while they run, \
             within a second of the next connection",
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list(dir: &Path, json: bool) -> Outcome {
    let folder = Folder::open(dir)?;
    let authority = folder.authority()?;
    let mut issued = Vec::new();
    for name in folder.names()? {
        if let Some(certificate) = folder.issued(&name) {
            issued.push((folder.place(&name), certificate?));
        }
    }
    if json {
        let reports: Vec<Value> = issued
            .iter()
            .map(|(place, certificate)| report_in(place, certificate))
            .collect();
        print_json(&json!({ "authority": report(&authority), "issued": reports }))?;
        return Ok(ExitCode::SUCCESS);
    }
    print_line(&format!("authority {}", line(dir, &authority)))?;
    for (place, certificate) in &issued {
        print_line(&line(place, certificate))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A certificate on one line.
fn line(place: &Path, certificate: &Certificate) -> String {
    let Certificate { name, serial, .. } = certificate;
    let mut parts = vec![format!("\"{name}\"")];
    if !certificate.is_authority {
        parts.push(certificate.roles.to_string());
    }
    parts.extend(certificate.hosts.iter().cloned());
    if !certificate.corpora.is_empty() {
        parts.push(format!("corpora {}", certificate.corpora));
    }
    let days = certificate.left_s(SystemTime::now()) / 86_400;
    let left = match certificate.left_s(SystemTime::now()) > 0 {
        true => format!("{days} days left"),
        false => "ended".to_owned(),
    };
    let until = time_text(certificate.ends_s);
    format!(
        "{}: {}, valid until {until} ({left}), serial {serial}",
        place.display(),
        parts.join(", ")
    )
}

fn report(certificate: &Certificate) -> Value {
    let roles: Vec<&str> = certificate.roles.iter().map(Role::name).collect();
    json!({
        "name": certificate.name,
        "serial": certificate.serial,
        "roles": roles,
        "corpora": certificate.corpora.iter().collect::<Vec<_>>(),
        "hosts": certificate.hosts,
        "begins_unix_s": certificate.begins_s,
        "ends_unix_s": certificate.ends_s,
        "left_s": certificate.left_s(SystemTime::now()),
    })
}

fn report_in(place: &Path, certificate: &Certificate) -> Value {
    let mut report = report(certificate);
    report["directory"] = json!(place);
    report
}
