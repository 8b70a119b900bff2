//! Commands that have further ones within: CLIENT, COMMAND, CONFIG, FUNCTION, MEMORY, OBJECT,
//! SCRIPT, SLOWLOG. What is said of those within is said as of a command, under both names.

use super::execute::Call;
use super::table::{Id, SECOND, Spec, lookup, spec};
use crate::keyspace::Keyspace;

// Redis's own, which a test compares.
const PLAIN: &[&str] = &["loading", "stale"];
const CONNECTION: &[&str] = &["noscript", "loading", "stale"];
const CONNECTION_ADMIN: &[&str] = &["admin", "noscript", "loading", "stale"];
const ADMIN: &[&str] = &["admin", "loading", "stale"];
const READ: &[&str] = &["readonly"];
const SCRIPT: &[&str] = &["noscript"];
const SCRIPT_LOAD: &[&str] = &["noscript", "stale"];
const SCRIPT_BUSY: &[&str] = &["noscript", "allow_busy"];
const LIBRARY: &[&str] = &["write", "noscript"];
const LIBRARY_LOAD: &[&str] = &["write", "denyoom", "noscript"];

const NO_KEY: (i64, i64, i64) = (0, 0, 0);

/// All of them, in alphabetical order.
#[rustfmt::skip]
pub(super) const SUBCOMMANDS: &[Spec] = &[
    spec("client|caching", Id::Client, 3, CONNECTION, NO_KEY, "connection", "6.0.0", "An error: nothing is tracked"),
    spec("client|getname", Id::Client, 2, CONNECTION, NO_KEY, "connection", "2.6.9", "Name of this connection"),
    spec("client|getredir", Id::Client, 2, CONNECTION, NO_KEY, "connection", "6.0.0", "-1: nothing is tracked"),
    spec("client|help", Id::Client, 2, PLAIN, NO_KEY, "connection", "5.0.0", "What CLIENT can do"),
    spec("client|id", Id::Client, 2, CONNECTION, NO_KEY, "connection", "5.0.0", "Number of this connection"),
    spec("client|info", Id::Client, 2, CONNECTION, NO_KEY, "connection", "6.2.0", "What is known of this connection"),
    spec("client|kill", Id::Client, -3, CONNECTION_ADMIN, NO_KEY, "connection", "2.4.0", "Ends connections"),
    spec("client|list", Id::Client, -2, CONNECTION_ADMIN, NO_KEY, "connection", "2.4.0", "What is known of all connections"),
    spec("client|no-evict", Id::Client, 3, CONNECTION_ADMIN, NO_KEY, "connection", "7.0.0", "Taken, without effect"),
    spec("client|no-touch", Id::Client, 3, CONNECTION, NO_KEY, "connection", "7.2.0", "Taken, without effect"),
    spec("client|pause", Id::Client, -3, CONNECTION_ADMIN, NO_KEY, "connection", "3.0.0", "Refused"),
    spec("client|reply", Id::Client, 3, CONNECTION, NO_KEY, "connection", "3.2.0", "Whether commands are answered"),
    spec("client|setinfo", Id::Client, 4, CONNECTION, NO_KEY, "connection", "7.2.0", "Names the client's library"),
    spec("client|setname", Id::Client, 3, CONNECTION, NO_KEY, "connection", "2.6.9", "Names this connection"),
    spec("client|tracking", Id::Client, -3, CONNECTION, NO_KEY, "connection", "6.0.0", "OFF is taken, ON is an error"),
    spec("client|trackinginfo", Id::Client, 2, CONNECTION, NO_KEY, "connection", "6.2.0", "That nothing is tracked"),
    spec("client|unblock", Id::Client, -3, CONNECTION_ADMIN, NO_KEY, "connection", "5.0.0", "0: no command blocks"),
    spec("client|unpause", Id::Client, 2, CONNECTION_ADMIN, NO_KEY, "connection", "6.2.0", "Taken: nothing is paused"),
    spec("command|count", Id::Command, 2, PLAIN, NO_KEY, "server", "2.8.13", "How many commands there are"),
    spec("command|docs", Id::Command, -2, PLAIN, NO_KEY, "server", "7.0.0", "What commands do"),
    spec("command|getkeys", Id::Command, -4, PLAIN, NO_KEY, "server", "2.8.13", "The keys of a command"),
    spec("command|getkeysandflags", Id::Command, -4, PLAIN, NO_KEY, "server", "7.0.0", "The keys of a command, and what it does to them"),
    spec("command|help", Id::Command, 2, PLAIN, NO_KEY, "server", "5.0.0", "What COMMAND can do"),
    spec("command|info", Id::Command, -2, PLAIN, NO_KEY, "server", "2.8.13", "What is known of commands"),
    spec("command|list", Id::Command, -2, PLAIN, NO_KEY, "server", "7.0.0", "Names of commands"),
    spec("config|get", Id::Config, -3, CONNECTION_ADMIN, NO_KEY, "server", "2.0.0", "Settings whose names match"),
    spec("config|help", Id::Config, 2, PLAIN, NO_KEY, "server", "5.0.0", "What CONFIG can do"),
    spec("config|resetstat", Id::Config, 2, CONNECTION_ADMIN, NO_KEY, "server", "2.0.0", "Statistics begin anew"),
    spec("config|rewrite", Id::Config, 2, CONNECTION_ADMIN, NO_KEY, "server", "2.8.0", "Refused"),
    spec("config|set", Id::Config, -4, CONNECTION_ADMIN, NO_KEY, "server", "2.0.0", "Changes the memory limit"),
    spec("function|delete", Id::Function, 3, LIBRARY, NO_KEY, "scripting", "7.0.0", "Forgets a library"),
    spec("function|dump", Id::Function, 2, SCRIPT, NO_KEY, "scripting", "7.0.0", "Refused"),
    spec("function|flush", Id::Function, -2, LIBRARY, NO_KEY, "scripting", "7.0.0", "Forgets all libraries"),
    spec("function|help", Id::Function, 2, PLAIN, NO_KEY, "scripting", "7.0.0", "What FUNCTION can do"),
    spec("function|kill", Id::Function, 2, SCRIPT_BUSY, NO_KEY, "scripting", "7.0.0", "Ends what is being executed"),
    spec("function|list", Id::Function, -2, SCRIPT, NO_KEY, "scripting", "7.0.0", "The libraries that there are"),
    spec("function|load", Id::Function, -3, LIBRARY_LOAD, NO_KEY, "scripting", "7.0.0", "Keeps a library"),
    spec("function|restore", Id::Function, -3, LIBRARY_LOAD, NO_KEY, "scripting", "7.0.0", "Refused"),
    spec("function|stats", Id::Function, 2, SCRIPT_BUSY, NO_KEY, "scripting", "7.0.0", "How many libraries and functions there are"),
    spec("memory|help", Id::Memory, 2, PLAIN, NO_KEY, "server", "4.0.0", "What MEMORY can do"),
    spec("memory|usage", Id::Memory, -3, READ, SECOND, "server", "4.0.0", "Bytes that an item takes in one copy"),
    spec("object|encoding", Id::Object, 3, READ, SECOND, "generic", "2.2.3", "How Redis would hold a value"),
    spec("object|freq", Id::Object, 3, READ, SECOND, "generic", "4.0.0", "An error: frequencies are not told"),
    spec("object|help", Id::Object, 2, PLAIN, NO_KEY, "generic", "6.2.0", "What OBJECT can do"),
    spec("object|idletime", Id::Object, 3, READ, SECOND, "generic", "2.2.3", "Seconds since an item was last used"),
    spec("object|refcount", Id::Object, 3, READ, SECOND, "generic", "2.2.3", "1"),
    spec("script|exists", Id::Script, -3, SCRIPT, NO_KEY, "scripting", "2.6.0", "Which scripts are kept"),
    spec("script|flush", Id::Script, -2, SCRIPT, NO_KEY, "scripting", "2.6.0", "Forgets scripts"),
    spec("script|help", Id::Script, 2, PLAIN, NO_KEY, "scripting", "5.0.0", "What SCRIPT can do"),
    spec("script|kill", Id::Script, 2, SCRIPT_BUSY, NO_KEY, "scripting", "2.6.0", "Ends what is being executed"),
    spec("script|load", Id::Script, 3, SCRIPT_LOAD, NO_KEY, "scripting", "2.6.0", "Keeps a script"),
    spec("slowlog|get", Id::SlowLog, -2, ADMIN, NO_KEY, "server", "2.2.12", "Commands that took long"),
    spec("slowlog|help", Id::SlowLog, 2, PLAIN, NO_KEY, "server", "6.2.0", "What SLOWLOG can do"),
    spec("slowlog|len", Id::SlowLog, 2, ADMIN, NO_KEY, "server", "2.2.12", "How many there are"),
    spec("slowlog|reset", Id::SlowLog, 2, ADMIN, NO_KEY, "server", "2.2.12", "Forgets them"),
];

/// Those within a command.
pub(super) fn within(spec: &Spec) -> impl Iterator<Item = &'static Spec> + Clone {
    let (id, is_within) = (spec.id, is_subcommand(spec));
    SUBCOMMANDS
        .iter()
        .filter(move |within| within.id == id && !is_within)
}

fn is_subcommand(spec: &Spec) -> bool {
    spec.name.contains('|')
}

/// Whether there are any.
pub(super) fn is_container(spec: &Spec) -> bool {
    within(spec).next().is_some()
}

/// A subcommand's own name, without that of the command around it.
fn own_name(spec: &Spec) -> &'static str {
    match spec.name.split_once('|') {
        Some((_, own)) => own,
        None => spec.name,
    }
}

/// The one of this name, in whatever letters.
pub(super) fn one_within(spec: &Spec, name: &[u8]) -> Option<&'static Spec> {
    within(spec).find(|within| name.eq_ignore_ascii_case(own_name(within).as_bytes()))
}

/// A command by its name, or a subcommand by both names with a bar between them.
pub(super) fn lookup_any(name: &[u8]) -> Option<&'static Spec> {
    match name.iter().position(|&byte| byte == b'|') {
        None => lookup(name),
        Some(bar) => one_within(lookup(&name[..bar])?, &name[bar + 1..]),
    }
}

/// The subcommand that is called, if there is such a one with so many arguments; answers
/// what is wrong otherwise.
pub(super) fn subcommand<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Option<&'static str> {
    let Some(spec) = one_within(call.spec, call.arguments.get(1)) else {
        let word = call.arguments.get(1);
        let shown = word.split(|&byte| byte == 0).next().unwrap_or_default();
        let shown = &shown[..shown.len().min(128)];
        let command = call.spec.name.to_ascii_uppercase();
        let hint = format!("'. Try {command} HELP.");
        let error = [b"ERR unknown subcommand '", shown, hint.as_bytes()].concat();
        call.reply.error(error);
        return None;
    };
    if !spec.takes(call.arguments.len()) {
        call.reply.wrong_arity(spec.name);
        return None;
    }
    Some(own_name(spec))
}

/// HELP of a command with subcommands.
pub(super) fn help<K: Keyspace>(call: &mut Call<'_, '_, '_, K>, lines: &[&str]) {
    let name = call.spec.name.to_ascii_uppercase();
    call.reply.array(lines.len() + 1);
    call.reply.simple(&format!(
        "{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    ));
    for line in lines {
        call.reply.simple(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_under_both_names() {
        assert!(SUBCOMMANDS.is_sorted_by_key(|spec| spec.name));
        for spec in SUBCOMMANDS {
            let found = lookup_any(spec.name.to_ascii_uppercase().as_bytes());
            assert_eq!(found.map(|found| found.name), Some(spec.name));
            assert!(lookup(spec.name.as_bytes()).is_none());
            assert!(!is_container(spec));
        }
        for absent in [
            "",
            "|",
            "get|",
            "|get",
            "get|get",
            "object|",
            "object|object",
            "client|id|id",
        ] {
            assert!(lookup_any(absent.as_bytes()).is_none(), "{absent}");
        }
        let memory = lookup(b"memory").map(|memory| within(memory).count());
        assert_eq!(memory, Some(2));
    }
}
