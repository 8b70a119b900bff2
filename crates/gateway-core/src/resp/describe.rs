//! COMMAND: what the commands are, for clients that ask.

use super::connection::{help, subcommand};
use super::execute::Call;
use super::glob;
use super::parse::number;
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
        "transactions" => categories.push("@transaction"),
        "scripting" => categories.push("@scripting"),
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
    reply.map(3);
    reply.bulk("summary");
    reply.bulk(spec.summary);
    reply.bulk("since");
    reply.bulk(spec.since);
    reply.bulk("group");
    reply.bulk(spec.group);
}

const HELP: &[&str] = &[
    "(no subcommand)",
    "    All commands.",
    "COUNT",
    "    How many there are.",
    "DOCS [<command> ...]",
    "    What they do.",
    "GETKEYS <command and arguments>",
    "    The keys of a command.",
    "INFO [<command> ...]",
    "    What is known of them.",
    "LIST [FILTERBY (MODULE <name>|ACLCAT <category>|PATTERN <pattern>)]",
    "    Their names.",
];

/// COMMAND GETKEYS.
fn get_keys<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    let arguments = call.arguments;
    let Some(spec) = lookup(arguments.get(2)) else {
        return call.reply.error("ERR Invalid command specified");
    };
    let count = arguments.len() - 2;
    if !spec.takes(count) {
        let error = "ERR Invalid number of arguments specified for command";
        return call.reply.error(error);
    }
    let is_script = spec.is_script();
    let (first, last, step) = match spec.keys {
        _ if is_script => match number(arguments.get(4)).map(usize::try_from) {
            Some(Ok(keys)) if (1..=count - 3).contains(&keys) => (3, keys + 2, 1),
            Some(Ok(0)) => return call.reply.array(0),
            _ => {
                return call
                    .reply
                    .error("ERR Invalid arguments specified for command");
            }
        },
        (first, -1, step) => (first as usize, count - 1, step as usize),
        (first, last, step) => (first as usize, last as usize, step as usize),
    };
    if first == 0 || last >= count {
        let error = "ERR The command has no key arguments";
        return call.reply.error(error);
    }
    let keys = (first..=last).step_by(step);
    call.reply.array(keys.clone().count());
    for at in keys {
        call.reply.bulk(arguments.get(2 + at));
    }
}

/// COMMAND LIST FILTERBY.
fn list_some<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    let arguments = call.arguments;
    let by = match arguments.len() {
        5 if arguments.is(2, "filterby") => arguments.get(3).to_ascii_lowercase(),
        _ => return call.reply.syntax_error(),
    };
    let wanted = arguments.get(4).to_ascii_lowercase();
    let is_wanted = |spec: &&Spec| match &*by {
        b"aclcat" => categories(spec)
            .iter()
            .any(|category| category.as_bytes().get(1..) == Some(&*wanted)),
        b"pattern" => wanted.len() <= 128 && glob::matches(&wanted, spec.name.as_bytes()),
        _ => false,
    };
    if !matches!(&*by, b"module" | b"aclcat" | b"pattern") {
        return call.reply.syntax_error();
    }
    let found: Vec<&Spec> = SPECS.iter().filter(is_wanted).collect();
    call.reply.array(found.len());
    for spec in found {
        call.reply.bulk(spec.name);
    }
}

/// COMMAND and its subcommands.
pub(super) fn command<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    let arguments = call.arguments;
    let name = if arguments.len() == 1 {
        "info"
    } else {
        let known = [
            ("count", 2),
            ("docs", -2),
            ("getkeys", -4),
            ("help", 2),
            ("info", -2),
            ("list", -2),
        ];
        match subcommand(call, &known) {
            None => return,
            Some(name) => name,
        }
    };
    match name {
        "help" => return help(call, HELP),
        "getkeys" => return get_keys(call),
        "list" if arguments.len() > 2 => return list_some(call),
        _ => {}
    }
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
