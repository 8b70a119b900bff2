//! The commands that there are.

use crate::world::Role;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Id {
    Append,
    Auth,
    Client,
    Command,
    Config,
    DbSize,
    Decr,
    DecrBy,
    Del,
    Discard,
    Echo,
    Eval,
    EvalSha,
    Exec,
    Exists,
    Expire,
    ExpireAt,
    ExpireTime,
    FlushAll,
    FlushDb,
    Get,
    GetDel,
    GetEx,
    GetRange,
    GetSet,
    Hello,
    Incr,
    IncrBy,
    Info,
    Keys,
    MGet,
    MSet,
    Multi,
    Persist,
    PExpire,
    PExpireAt,
    PExpireTime,
    Ping,
    PSetEx,
    PTtl,
    Quit,
    Reset,
    Scan,
    Script,
    Select,
    Set,
    SetEx,
    SetNx,
    SetRange,
    SlowLog,
    StrLen,
    SubStr,
    Time,
    Touch,
    Ttl,
    Type,
    Unlink,
    Unwatch,
    Watch,
}

/// What is said of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    /// In small letters.
    pub(super) name: &'static str,
    pub(super) id: Id,
    /// Arguments with the name; at least as many if negative.
    pub(super) arity: i32,
    pub(super) flags: &'static [&'static str],
    /// First key, last key (-1: the last argument), step; zeros without keys.
    pub(super) keys: (i64, i64, i64),
    pub(super) group: &'static str,
    pub(super) summary: &'static str,
}

const READ: &[&str] = &["readonly", "fast"];
const WRITE: &[&str] = &["write", "denyoom", "fast"];
const REMOVE: &[&str] = &["write", "fast"];
const CONNECTION: &[&str] = &["loading", "stale", "fast"];
const BEFORE_AUTH: &[&str] = &["loading", "stale", "fast", "no_auth"];
const TRANSACTION: &[&str] = &["noscript", "loading", "stale", "fast"];
const SCRIPT: &[&str] = &["noscript", "movablekeys"];
const ADMIN: &[&str] = &["loading", "stale"];

const ONE_KEY: (i64, i64, i64) = (1, 1, 1);
const ALL_KEYS: (i64, i64, i64) = (1, -1, 1);
const PAIRS: (i64, i64, i64) = (1, -1, 2);
const NO_KEY: (i64, i64, i64) = (0, 0, 0);

const fn spec(
    name: &'static str,
    id: Id,
    arity: i32,
    flags: &'static [&'static str],
    keys: (i64, i64, i64),
    group: &'static str,
    summary: &'static str,
) -> Spec {
    Spec {
        name,
        id,
        arity,
        flags,
        keys,
        group,
        summary,
    }
}

/// All of them, in alphabetical order.
#[rustfmt::skip]
pub(super) const SPECS: &[Spec] = &[
    spec("append", Id::Append, 3, WRITE, ONE_KEY, "string", "Adds to the end of a value"),
    spec("auth", Id::Auth, -2, BEFORE_AUTH, NO_KEY, "connection", "Authenticates the connection"),
    spec("client", Id::Client, -2, CONNECTION, NO_KEY, "connection", "Commands about the connection"),
    spec("command", Id::Command, -1, ADMIN, NO_KEY, "server", "Describes commands"),
    spec("config", Id::Config, -2, ADMIN, NO_KEY, "server", "Commands about the configuration"),
    spec("dbsize", Id::DbSize, 1, READ, NO_KEY, "server", "Number of keys"),
    spec("decr", Id::Decr, 2, WRITE, ONE_KEY, "string", "Counts down by one"),
    spec("decrby", Id::DecrBy, 3, WRITE, ONE_KEY, "string", "Counts down"),
    spec("del", Id::Del, -2, REMOVE, ALL_KEYS, "generic", "Removes keys"),
    spec("discard", Id::Discard, 1, TRANSACTION, NO_KEY, "transactions", "Forgets the commands that are queued"),
    spec("echo", Id::Echo, 2, CONNECTION, NO_KEY, "connection", "Answers its argument"),
    spec("eval", Id::Eval, -3, SCRIPT, NO_KEY, "scripting", "Executes a script over one key"),
    spec("evalsha", Id::EvalSha, -3, SCRIPT, NO_KEY, "scripting", "Executes a script that is kept"),
    spec("exec", Id::Exec, 1, TRANSACTION, NO_KEY, "transactions", "Executes the commands that are queued"),
    spec("exists", Id::Exists, -2, READ, ALL_KEYS, "generic", "Counts the keys that exist"),
    spec("expire", Id::Expire, -3, REMOVE, ONE_KEY, "generic", "Sets an expiry in seconds"),
    spec("expireat", Id::ExpireAt, -3, REMOVE, ONE_KEY, "generic", "Sets an expiry as a Unix time"),
    spec("expiretime", Id::ExpireTime, 2, READ, ONE_KEY, "generic", "Expiry as a Unix time"),
    spec("flushall", Id::FlushAll, -1, REMOVE, NO_KEY, "server", "Removes everything"),
    spec("flushdb", Id::FlushDb, -1, REMOVE, NO_KEY, "server", "Removes everything"),
    spec("get", Id::Get, 2, READ, ONE_KEY, "string", "Reads a value"),
    spec("getdel", Id::GetDel, 2, REMOVE, ONE_KEY, "string", "Reads a value and removes it"),
    spec("getex", Id::GetEx, -2, REMOVE, ONE_KEY, "string", "Reads a value and sets its expiry"),
    spec("getrange", Id::GetRange, 4, READ, ONE_KEY, "string", "Reads a part of a value"),
    spec("getset", Id::GetSet, 3, WRITE, ONE_KEY, "string", "Stores a value and reads the old one"),
    spec("hello", Id::Hello, -1, BEFORE_AUTH, NO_KEY, "connection", "Agrees on the protocol"),
    spec("incr", Id::Incr, 2, WRITE, ONE_KEY, "string", "Counts up by one"),
    spec("incrby", Id::IncrBy, 3, WRITE, ONE_KEY, "string", "Counts up"),
    spec("info", Id::Info, -1, ADMIN, NO_KEY, "server", "Information about the server"),
    spec("keys", Id::Keys, 2, &["readonly"], NO_KEY, "generic", "Lists all keys that match a pattern"),
    spec("mget", Id::MGet, -2, READ, ALL_KEYS, "string", "Reads many values"),
    spec("mset", Id::MSet, -3, WRITE, PAIRS, "string", "Stores many values"),
    spec("multi", Id::Multi, 1, TRANSACTION, NO_KEY, "transactions", "Begins to queue commands"),
    spec("persist", Id::Persist, 2, REMOVE, ONE_KEY, "generic", "Removes the expiry"),
    spec("pexpire", Id::PExpire, -3, REMOVE, ONE_KEY, "generic", "Sets an expiry in milliseconds"),
    spec("pexpireat", Id::PExpireAt, -3, REMOVE, ONE_KEY, "generic", "Sets an expiry as a Unix time in milliseconds"),
    spec("pexpiretime", Id::PExpireTime, 2, READ, ONE_KEY, "generic", "Expiry as a Unix time in milliseconds"),
    spec("ping", Id::Ping, -1, CONNECTION, NO_KEY, "connection", "Answers"),
    spec("psetex", Id::PSetEx, 4, WRITE, ONE_KEY, "string", "Stores a value with an expiry in milliseconds"),
    spec("pttl", Id::PTtl, 2, READ, ONE_KEY, "generic", "Time to live in milliseconds"),
    spec("quit", Id::Quit, -1, BEFORE_AUTH, NO_KEY, "connection", "Ends the connection"),
    spec("reset", Id::Reset, 1, BEFORE_AUTH, NO_KEY, "connection", "Makes the connection like a new one"),
    spec("scan", Id::Scan, -2, &["readonly"], NO_KEY, "generic", "Lists keys, a part at a time"),
    spec("script", Id::Script, -2, SCRIPT, NO_KEY, "scripting", "Keeps and forgets scripts"),
    spec("select", Id::Select, 2, CONNECTION, NO_KEY, "connection", "Chooses a database; there is one"),
    spec("set", Id::Set, -3, WRITE, ONE_KEY, "string", "Stores a value"),
    spec("setex", Id::SetEx, 4, WRITE, ONE_KEY, "string", "Stores a value with an expiry in seconds"),
    spec("setnx", Id::SetNx, 3, WRITE, ONE_KEY, "string", "Stores a value unless there is one"),
    spec("setrange", Id::SetRange, 4, WRITE, ONE_KEY, "string", "Overwrites a part of a value"),
    spec("slowlog", Id::SlowLog, -2, ADMIN, NO_KEY, "server", "Commands about the slow log"),
    spec("strlen", Id::StrLen, 2, READ, ONE_KEY, "string", "Length of a value"),
    spec("substr", Id::SubStr, 4, READ, ONE_KEY, "string", "Reads a part of a value"),
    spec("time", Id::Time, 1, CONNECTION, NO_KEY, "server", "The server's clock"),
    spec("touch", Id::Touch, -2, READ, ALL_KEYS, "generic", "Counts the keys that exist, and uses them"),
    spec("ttl", Id::Ttl, 2, READ, ONE_KEY, "generic", "Time to live in seconds"),
    spec("type", Id::Type, 2, READ, ONE_KEY, "generic", "Type of a value: string or none"),
    spec("unlink", Id::Unlink, -2, REMOVE, ALL_KEYS, "generic", "Removes keys"),
    spec("unwatch", Id::Unwatch, 1, TRANSACTION, NO_KEY, "transactions", "Watches no keys any more"),
    spec("watch", Id::Watch, -2, TRANSACTION, ALL_KEYS, "transactions", "Has EXEC do nothing if these keys change"),
];

/// Where GET stands among them.
const GET: usize = 20;
const _: () = assert!(matches!(SPECS[GET].id, Id::Get));

/// The longest name.
const NAME_LEN_MAX: usize = 16;

/// The command of this name, in whatever letters.
pub(super) fn lookup(name: &[u8]) -> Option<&'static Spec> {
    // Most of what comes.
    if name.eq_ignore_ascii_case(b"get") {
        return Some(&SPECS[GET]);
    }
    let mut small = [0; NAME_LEN_MAX];
    let small = small.get_mut(..name.len())?;
    small.copy_from_slice(name);
    small.make_ascii_lowercase();
    let index = SPECS
        .binary_search_by(|spec| spec.name.as_bytes().cmp(small))
        .ok()?;
    Some(&SPECS[index])
}

impl Spec {
    /// Whether this is a legal number of arguments, the name included.
    pub(super) fn takes(&self, count: usize) -> bool {
        let least = self.arity.unsigned_abs() as usize;
        if self.arity < 0 {
            count >= least
        } else {
            count == least
        }
    }

    /// What it takes.
    pub(super) fn role(&self) -> Role {
        match self.id {
            Id::FlushAll | Id::FlushDb => Role::Admin,
            // A script may write.
            Id::Eval | Id::EvalSha | Id::Script => Role::Write,
            _ if self.flags.contains(&"write") => Role::Write,
            _ => Role::Read,
        }
    }

    /// Whether it may come before authentication.
    pub(super) fn is_before_auth(&self) -> bool {
        self.flags.contains(&"no_auth")
    }

    /// Whether it takes any number of keys, which are executed as they come.
    pub(super) fn is_many(&self) -> bool {
        self.keys.1 == -1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found() {
        for spec in SPECS {
            let upper = spec.name.to_ascii_uppercase();
            let found = lookup(upper.as_bytes()).map(|found| found.id);
            assert_eq!(found, Some(spec.id), "{upper}");
        }
        for absent in ["", "g", "gets", "lpush", "a name that is much too long"] {
            assert!(lookup(absent.as_bytes()).is_none(), "{absent}");
        }
        assert!(SPECS.is_sorted_by_key(|spec| spec.name));
    }
}
