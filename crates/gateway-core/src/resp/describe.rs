//! COMMAND: what the commands are, for clients that ask.

use super::execute::Call;
use super::glob;
use super::key_specs::{Find, KeySpec, flags_of_set, key_specs, tips};
use super::parse::number;
use super::reply::Reply;
use super::subcommands::{
    SUBCOMMANDS, help, is_container, lookup_any, one_within, subcommand, within,
};
use super::table::{Id, SPECS, Spec, lookup};
use crate::keyspace::{Keyspace, REPORT_WORK};

/// Most names that COMMAND INFO and COMMAND DOCS are asked for at once: more than there are.
const NAMED_MAX: usize = 256;
const _: () = assert!(SPECS.len() + SUBCOMMANDS.len() <= NAMED_MAX);
/// What telling of one command counts as, those within it apart: see
/// [`Keyspace::work`](crate::keyspace::Keyspace::work).
const SPEC_WORK: usize = 2 << 10;
/// What is told of one command at most, those within it apart.
const SPEC_LEN_MAX: usize = 1 << 10;
/// The same of all of them at most.
const ALL_LEN_MAX: usize = 64 << 10;
/// What COMMAND GETKEYSANDFLAGS answers of a key at most, beside the key.
const KEY_AND_FLAGS_LEN_MAX: usize = 128;

/// Groups of rights in the order in which Redis tells of them.
const CATEGORIES: &[&str] = &[
    "@keyspace",
    "@read",
    "@write",
    "@string",
    "@admin",
    "@fast",
    "@slow",
    "@dangerous",
    "@connection",
    "@transaction",
    "@scripting",
];

/// Groups of rights, as Redis derives them from flags and groups.
fn categories(spec: &Spec) -> Vec<&'static str> {
    let mut categories = Vec::new();
    let is_script = spec.group == "scripting";
    if spec.flags.contains(&"readonly") && !is_script {
        categories.push("@read");
    }
    if spec.flags.contains(&"write") {
        categories.push("@write");
    }
    if spec.flags.contains(&"admin") {
        categories.push("@admin");
    }
    let is_dangerous = matches!(spec.id, Id::FlushAll | Id::FlushDb | Id::Info | Id::Keys);
    if is_dangerous || spec.flags.contains(&"admin") {
        categories.push("@dangerous");
    }
    // Redis has a command around others in no group.
    let group = match (spec.id, spec.group) {
        (Id::Command, _) => "@connection",
        _ if is_container(spec) => "",
        (Id::DbSize | Id::FlushAll | Id::FlushDb, _) | (_, "generic") => "@keyspace",
        (_, "string") => "@string",
        (_, "connection") => "@connection",
        (_, "transactions") => "@transaction",
        (_, "scripting") => "@scripting",
        _ => "",
    };
    if !group.is_empty() {
        categories.push(group);
    }
    categories.push(match spec.flags.contains(&"fast") {
        true => "@fast",
        false => "@slow",
    });
    categories.sort_by_key(|category| CATEGORIES.iter().position(|known| known == category));
    categories
}

fn put_words(reply: &mut Reply<'_>, words: &[&str]) {
    reply.set(words.len());
    for word in words {
        reply.simple(word);
    }
}

/// Where keys are, and what is done to them.
fn put_keys(reply: &mut Reply<'_>, keys: &KeySpec) {
    let has_notes = !keys.notes.is_empty();
    reply.map(3 + usize::from(has_notes));
    if has_notes {
        reply.bulk("notes");
        reply.bulk(keys.notes);
    }
    reply.bulk("flags");
    put_words(reply, keys.flags);
    let mut step = |name: &str, kind: &str, numbers: &[(&str, i64)]| {
        reply.bulk(name);
        reply.map(2);
        reply.bulk("type");
        reply.bulk(kind);
        reply.bulk("spec");
        reply.map(numbers.len());
        for (name, number) in numbers {
            reply.bulk(name);
            reply.integer(*number);
        }
    };
    step("begin_search", "index", &[("index", keys.first)]);
    match keys.find {
        Find::Range { last, step: each } => {
            let numbers = [("lastkey", last), ("keystep", each), ("limit", 0)];
            step("find_keys", "range", &numbers);
        }
        Find::Counted => {
            let numbers = [("keynumidx", 0), ("firstkey", 1), ("keystep", 1)];
            step("find_keys", "keynum", &numbers);
        }
    }
}

/// The ten things that Redis 7 says of a command.
fn put_info(reply: &mut Reply<'_>, spec: &Spec) {
    let is_container = is_container(spec);
    reply.array(10);
    reply.bulk(spec.name);
    reply.integer(i64::from(spec.arity));
    put_words(reply, spec.flags);
    // Of a command around others those say where their keys are.
    let (first, last, step) = match is_container {
        true => (0, 0, 0),
        false => spec.keys,
    };
    for number in [first, last, step] {
        reply.integer(number);
    }
    put_words(reply, &categories(spec));
    let tips = tips(spec);
    reply.set(tips.len());
    for tip in tips {
        reply.bulk(tip);
    }
    let keys = match is_container {
        true => Vec::new(),
        false => key_specs(spec),
    };
    reply.set(keys.len());
    for keys in &keys {
        put_keys(reply, keys);
    }
    // As Redis has it: an array, but of none a set.
    match within(spec).count() {
        0 => reply.set(0),
        count => reply.array(count),
    }
    for within in within(spec) {
        put_info(reply, within);
    }
}

fn put_docs(reply: &mut Reply<'_>, spec: &Spec) {
    reply.bulk(spec.name);
    let count = within(spec).count();
    reply.map(3 + usize::from(count > 0));
    reply.bulk("summary");
    reply.bulk(spec.summary);
    reply.bulk("since");
    reply.bulk(spec.since);
    reply.bulk("group");
    reply.bulk(spec.group);
    if count > 0 {
        reply.bulk("subcommands");
        reply.map(count);
        for within in within(spec) {
            put_docs(reply, within);
        }
    }
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
    "GETKEYSANDFLAGS <command and arguments>",
    "    The keys of a command, and what it does to them.",
    "INFO [<command> ...]",
    "    What is known of them.",
    "LIST [FILTERBY (MODULE <name>|ACLCAT <category>|PATTERN <pattern>)]",
    "    Their names.",
];

/// COMMAND GETKEYS, GETKEYSANDFLAGS: of the command that begins with the third argument.
fn get_keys<K: Keyspace>(call: &mut Call<'_, '_, '_, K>, with_flags: bool) {
    let arguments = call.arguments;
    let asked = match lookup(arguments.get(2)) {
        Some(spec) if is_container(spec) => one_within(spec, arguments.get(3)),
        asked => asked,
    };
    let Some(spec) = asked else {
        return call.reply.error("ERR Invalid command specified");
    };
    let kinds = key_specs(spec);
    if kinds.is_empty() || spec.keys.0 == 0 && !spec.is_script() {
        let error = "ERR The command has no key arguments";
        return call.reply.error(error);
    }
    let count = arguments.len() - 2;
    if !spec.takes(count) {
        let error = "ERR Invalid number of arguments specified for command";
        return call.reply.error(error);
    }
    // Where keys are among the arguments, and of which kind.
    let mut found = Vec::new();
    for keys in &kinds {
        let first = keys.first as usize;
        let (at, last, step) = match keys.find {
            Find::Range { last: -1, step } => (first, count - 1, step as usize),
            Find::Range { .. } => (first, first, 1),
            Find::Counted => match number(arguments.get(2 + first)).map(usize::try_from) {
                Some(Ok(number @ 1..)) if number <= count - 1 - first => {
                    (first + 1, first + number, 1)
                }
                // None that could be told: a script may have none.
                _ => return call.reply.array(0),
            },
        };
        found.extend((at..=last).step_by(step).map(|at| (at, keys.flags)));
    }
    call.reply.array(found.len());
    for (at, mut flags) in found {
        if with_flags {
            call.reply.array(2);
        }
        call.reply.bulk(arguments.get(2 + at));
        if with_flags {
            if spec.id == Id::Set {
                flags = flags_of_set((5..arguments.len()).any(|at| arguments.is(at, "get")));
            }
            put_words(&mut call.reply, flags);
        }
    }
}

/// COMMAND LIST, of all or of those that a filter has.
fn list<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    let arguments = call.arguments;
    let by = match arguments.len() {
        2 => b"".to_vec(),
        5 if arguments.is(2, "filterby") => arguments.get(3).to_ascii_lowercase(),
        _ => return call.reply.syntax_error(),
    };
    let wanted = arguments.get(4).to_ascii_lowercase();
    let is_wanted = |spec: &&Spec| match &*by {
        b"aclcat" => categories(spec)
            .iter()
            .any(|category| category.as_bytes().get(1..) == Some(&*wanted)),
        b"pattern" => wanted.len() <= 128 && glob::matches(&wanted, spec.name.as_bytes()),
        by => by.is_empty(),
    };
    if !matches!(&*by, b"" | b"module" | b"aclcat" | b"pattern") {
        return call.reply.syntax_error();
    }
    let all = SPECS.iter().chain(SUBCOMMANDS);
    let found: Vec<&Spec> = all.filter(is_wanted).collect();
    call.reply.array(found.len());
    for spec in found {
        call.reply.bulk(spec.name);
    }
}

/// Commands that are told of for these names.
fn told_of<'a>(names: impl Iterator<Item = &'a [u8]>) -> usize {
    let told_of = |spec: &'static Spec| 1 + within(spec).count();
    names.map(|name| lookup_any(name).map_or(1, told_of)).sum()
}

/// What COMMAND with these words, its name first, counts as and answers at most; of
/// transactions that are to be executed at a stretch.
pub(super) fn comes_to_max(words: &[&[u8]]) -> (usize, usize) {
    let is = |name: &str| {
        let word = words.get(1);
        word.is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()))
    };
    let report = REPORT_WORK as usize;
    match words.get(2..) {
        Some(names) if !names.is_empty() && (is("info") || is("docs")) => {
            let count = told_of(names.iter().copied().take(NAMED_MAX));
            (report + count * SPEC_WORK, count * SPEC_LEN_MAX)
        }
        Some(names) if !names.is_empty() && is("getkeysandflags") => {
            (report, names.len() * KEY_AND_FLAGS_LEN_MAX)
        }
        _ => {
            let all = SPECS.len() + SUBCOMMANDS.len();
            (report + all * SPEC_WORK, ALL_LEN_MAX)
        }
    }
}

/// COMMAND and its subcommands.
pub(super) fn command<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) {
    let arguments = call.arguments;
    let name = if arguments.len() == 1 {
        "info"
    } else {
        match subcommand(call) {
            None => return,
            Some(name) => name,
        }
    };
    match name {
        "help" => return help(call, HELP),
        "getkeys" | "getkeysandflags" => return get_keys(call, name == "getkeysandflags"),
        "count" => return call.reply.integer(SPECS.len() as i64),
        _ => call.world.keyspace.charge(REPORT_WORK),
    }
    if name == "list" {
        return list(call);
    }
    let is_all = arguments.len() <= 2;
    if arguments.len().saturating_sub(2) > NAMED_MAX {
        return call.reply.error(format!(
            "ERR COMMAND tells of at most {NAMED_MAX} commands at once"
        ));
    }
    let count = match is_all {
        true => SPECS.len() + SUBCOMMANDS.len(),
        false => told_of(arguments.from(2)),
    };
    call.world.keyspace.charge((count * SPEC_WORK) as u64);
    let reply = &mut call.reply;
    match name {
        "info" if is_all => {
            reply.array(SPECS.len());
            for spec in SPECS {
                put_info(reply, spec);
            }
        }
        "info" => {
            reply.array(arguments.len() - 2);
            for name in arguments.from(2) {
                match lookup_any(name) {
                    Some(spec) => put_info(reply, spec),
                    None => reply.null(),
                }
            }
        }
        _ => {
            let asked: Vec<&Spec> = if is_all {
                SPECS.iter().collect()
            } else {
                arguments.from(2).filter_map(lookup_any).collect()
            };
            reply.map(asked.len());
            for spec in asked {
                put_docs(reply, spec);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn len_of(put: impl Fn(&mut Reply<'_>)) -> usize {
        let lens = [false, true].map(|is_resp3| {
            let mut out = Vec::new();
            put(&mut Reply {
                out: &mut out,
                is_resp3,
            });
            out.len()
        });
        lens[0].max(lens[1])
    }

    #[test]
    fn no_answer_is_longer_than_its_estimate() {
        let (mut infos, mut docs) = (0, 0);
        for spec in SPECS.iter().chain(SUBCOMMANDS) {
            let name = spec.name.as_bytes();
            let info = len_of(|reply| put_info(reply, spec));
            let doc = len_of(|reply| put_docs(reply, spec));
            for (subcommand, len) in [("INFO", info), ("docs", doc)] {
                let words = [b"COMMAND".as_slice(), subcommand.as_bytes(), name, name];
                let (_, answers) = comes_to_max(&words);
                assert!(2 * len + 16 <= answers, "{}: {len}", spec.name);
            }
            if !spec.name.contains('|') {
                infos += info;
                docs += doc;
            }
            for keys in key_specs(spec) {
                let len = len_of(|reply| put_words(reply, keys.flags));
                assert!(len + 32 <= KEY_AND_FLAGS_LEN_MAX, "{}: {len}", spec.name);
            }
        }
        for all in [infos, docs] {
            assert!(all + 16 <= ALL_LEN_MAX, "{all}");
        }
    }

    #[test]
    fn names_count_by_what_is_within() {
        let words = |name: &'static [u8], count| {
            let mut words = vec![b"command".as_slice(), b"info"];
            words.extend(vec![name; count]);
            words
        };
        let client = 1 + lookup(b"client").map_or(0, |spec| within(spec).count());
        assert!(client > 10);
        for (name, count, told) in [
            (b"get".as_slice(), 3, 3),
            (b"none", 3, 3),
            (b"client", 3, 3 * client),
            // More are refused.
            (b"client", 1000, NAMED_MAX * client),
        ] {
            let wanted = (REPORT_WORK as usize + told * SPEC_WORK, told * SPEC_LEN_MAX);
            assert_eq!(comes_to_max(&words(name, count)), wanted);
        }
    }
}
