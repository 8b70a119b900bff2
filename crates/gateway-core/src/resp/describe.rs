//! COMMAND: what the commands are, for clients that ask.

use super::connection::subcommand;
use super::execute::Call;
use super::reply::Reply;
use super::table::{SPECS, Spec, lookup};
use crate::keyspace::Keyspace;

/// Groups of rights, as Redis derives them from flags and groups.
fn categories(spec: &Spec) -> Vec<&'static str> {
    let mut categories = Vec::new();
    if spec.flags.contains(&"readonly") {
        categories.push("@read");
    }
    if spec.flags.contains(&"write") {
        categories.push("@write");
    }
    match spec.group {
        "string" => categories.push("@string"),
        "generic" => categories.push("@keyspace"),
        "connection" => categories.push("@connection"),
        _ => {}
    }
    categories.push(if spec.flags.contains(&"fast") {
        "@fast"
    } else {
        "@slow"
    });
    categories
}

/// The ten things that Redis 7 says of a command. Tips, key specifications and
/// subcommands are left empty: the three numbers say where the keys are.
fn put_info(reply: &mut Reply<'_>, spec: &Spec) {
    reply.array(10);
    reply.bulk(spec.name);
    reply.integer(i64::from(spec.arity));
    reply.set(spec.flags.len());
    for flag in spec.flags {
        reply.simple(flag);
    }
    let (first, last, step) = spec.keys;
    for number in [first, last, step] {
        reply.integer(number);
    }
    let categories = categories(spec);
    reply.set(categories.len());
    for category in categories {
        reply.simple(category);
    }
    for _ in 0..3 {
        reply.set(0);
    }
}

fn put_docs(reply: &mut Reply<'_>, spec: &Spec) {
    reply.bulk(spec.name);
    reply.map(2);
    reply.bulk("summary");
    reply.bulk(spec.summary);
    reply.bulk("group");
    reply.bulk(spec.group);
}

/// COMMAND and its subcommands.
pub(super) fn command<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    let arguments = call.arguments;
    let name = if arguments.len() == 1 {
        "info"
    } else {
        let known = [("count", 2), ("docs", -2), ("info", -2), ("list", 2)];
        match subcommand(call, &known) {
            None => return,
            Some(name) => name,
        }
    };
    let reply = &mut call.reply;
    let is_all = arguments.len() <= 2;
    match name {
        "count" => reply.integer(SPECS.len() as i64),
        "list" => {
            reply.array(SPECS.len());
            for spec in SPECS {
                reply.bulk(spec.name);
            }
        }
        "info" if is_all => {
            reply.array(SPECS.len());
            for spec in SPECS {
                put_info(reply, spec);
            }
        }
        "info" => {
            reply.array(arguments.len() - 2);
            for name in arguments.from(2) {
                match lookup(name) {
                    Some(spec) => put_info(reply, spec),
                    None => reply.null(),
                }
            }
        }
        _ => {
            let asked: Vec<&Spec> = if is_all {
                SPECS.iter().collect()
            } else {
                arguments.from(2).filter_map(lookup).collect()
            };
            reply.map(asked.len());
            for spec in asked {
                put_docs(reply, spec);
            }
        }
    }
}
