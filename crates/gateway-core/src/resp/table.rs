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
    Copy,
    DbSize,
    Decr,
    DecrBy,
    Del,
    Discard,
    Echo,
    Eval,
    EvalRo,
    EvalSha,
    EvalShaRo,
    Exec,
    Exists,
    Expire,
    ExpireAt,
    ExpireTime,
    FCall,
    FCallRo,
    FlushAll,
    FlushDb,
    Function,
    Get,
    GetDel,
    GetEx,
    GetRange,
    GetSet,
    Hello,
    Incr,
    IncrBy,
    IncrByFloat,
    Info,
    Keys,
    Memory,
    MGet,
    MSet,
    MSetNx,
    Multi,
    Object,
    Persist,
    PExpire,
    PExpireAt,
    PExpireTime,
    Ping,
    PSetEx,
    PTtl,
    Quit,
    Rename,
    RenameNx,
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
    /// The release of Redis that brought it.
    pub(super) since: &'static str,
    pub(super) summary: &'static str,
}

// Redis's own, which a test compares.
const NONE: &[&str] = &[];
const READ: &[&str] = &["readonly", "fast"];
const READ_SLOW: &[&str] = &["readonly"];
const WRITE: &[&str] = &["write", "denyoom", "fast"];
const WRITE_SLOW: &[&str] = &["write", "denyoom"];
const CHANGE: &[&str] = &["write", "fast"];
const CHANGE_SLOW: &[&str] = &["write"];
const BEFORE_AUTH: &[&str] = &[
    "noscript",
    "loading",
    "stale",
    "fast",
    "no_auth",
    "allow_busy",
];
const TRANSACTION: &[&str] = &["noscript", "loading", "stale", "fast", "allow_busy"];
const EXEC: &[&str] = &["noscript", "loading", "stale", "skip_slowlog"];
const SCRIPT: &[&str] = &[
    "noscript",
    "stale",
    "skip_monitor",
    "no_mandatory_keys",
    "movablekeys",
];
const SCRIPT_READ: &[&str] = &[
    "noscript",
    "readonly",
    "stale",
    "skip_monitor",
    "no_mandatory_keys",
    "movablekeys",
];
const CONNECTION: &[&str] = &["loading", "stale", "fast"];
const SERVER: &[&str] = &["loading", "stale"];
const FAST: &[&str] = &["fast"];

const ONE_KEY: (i64, i64, i64) = (1, 1, 1);
const ALL_KEYS: (i64, i64, i64) = (1, -1, 1);
const PAIRS: (i64, i64, i64) = (1, -1, 2);
const TWO_KEYS: (i64, i64, i64) = (1, 2, 1);
pub(super) const SECOND: (i64, i64, i64) = (2, 2, 1);
const NO_KEY: (i64, i64, i64) = (0, 0, 0);

#[allow(
    clippy::too_many_arguments,
    reason = "the columns of the table below, in its order"
)]
pub(super) const fn spec(
    name: &'static str,
    id: Id,
    arity: i32,
    flags: &'static [&'static str],
    keys: (i64, i64, i64),
    group: &'static str,
    since: &'static str,
    summary: &'static str,
) -> Spec {
    Spec {
        name,
        id,
        arity,
        flags,
        keys,
        group,
        since,
        summary,
    }
}

/// All of them, in alphabetical order.
#[rustfmt::skip]
pub(super) const SPECS: &[Spec] = &[
    spec("append", Id::Append, 3, WRITE, ONE_KEY, "string", "2.0.0", "Adds to the end of a value"),
    spec("auth", Id::Auth, -2, BEFORE_AUTH, NO_KEY, "connection", "1.0.0", "Authenticates the connection"),
    spec("client", Id::Client, -2, NONE, NO_KEY, "connection", "2.4.0", "Commands about the connection"),
    spec("command", Id::Command, -1, SERVER, NO_KEY, "server", "2.8.13", "Describes commands"),
    spec("config", Id::Config, -2, NONE, NO_KEY, "server", "2.0.0", "Commands about the configuration"),
    spec("copy", Id::Copy, -3, WRITE_SLOW, TWO_KEYS, "generic", "6.2.0", "Copies a value, with its expiry"),
    spec("dbsize", Id::DbSize, 1, READ, NO_KEY, "server", "1.0.0", "Number of keys"),
    spec("decr", Id::Decr, 2, WRITE, ONE_KEY, "string", "1.0.0", "Counts down by one"),
    spec("decrby", Id::DecrBy, 3, WRITE, ONE_KEY, "string", "1.0.0", "Counts down"),
    spec("del", Id::Del, -2, CHANGE_SLOW, ALL_KEYS, "generic", "1.0.0", "Removes keys"),
    spec("discard", Id::Discard, 1, TRANSACTION, NO_KEY, "transactions", "2.0.0", "Forgets the commands that are queued"),
    spec("echo", Id::Echo, 2, CONNECTION, NO_KEY, "connection", "1.0.0", "Answers its argument"),
    spec("eval", Id::Eval, -3, SCRIPT, NO_KEY, "scripting", "2.6.0", "Executes a script over one key"),
    spec("eval_ro", Id::EvalRo, -3, SCRIPT_READ, NO_KEY, "scripting", "7.0.0", "Executes a script that only reads"),
    spec("evalsha", Id::EvalSha, -3, SCRIPT, NO_KEY, "scripting", "2.6.0", "Executes a script that is kept"),
    spec("evalsha_ro", Id::EvalShaRo, -3, SCRIPT_READ, NO_KEY, "scripting", "7.0.0", "Executes a script that is kept and only reads"),
    spec("exec", Id::Exec, 1, EXEC, NO_KEY, "transactions", "1.2.0", "Executes the commands that are queued"),
    spec("exists", Id::Exists, -2, READ, ALL_KEYS, "generic", "1.0.0", "Counts the keys that exist"),
    spec("expire", Id::Expire, -3, CHANGE, ONE_KEY, "generic", "1.0.0", "Sets an expiry in seconds"),
    spec("expireat", Id::ExpireAt, -3, CHANGE, ONE_KEY, "generic", "1.2.0", "Sets an expiry as a Unix time"),
    spec("expiretime", Id::ExpireTime, 2, READ, ONE_KEY, "generic", "7.0.0", "Expiry as a Unix time"),
    spec("fcall", Id::FCall, -3, SCRIPT, NO_KEY, "scripting", "7.0.0", "Executes a function over one key"),
    spec("fcall_ro", Id::FCallRo, -3, SCRIPT_READ, NO_KEY, "scripting", "7.0.0", "Executes a function that only reads"),
    spec("flushall", Id::FlushAll, -1, CHANGE_SLOW, NO_KEY, "server", "1.0.0", "Removes everything"),
    spec("flushdb", Id::FlushDb, -1, CHANGE_SLOW, NO_KEY, "server", "1.0.0", "Removes everything"),
    spec("function", Id::Function, -2, NONE, NO_KEY, "scripting", "7.0.0", "Loads and forgets libraries of functions"),
    spec("get", Id::Get, 2, READ, ONE_KEY, "string", "1.0.0", "Reads a value"),
    spec("getdel", Id::GetDel, 2, CHANGE, ONE_KEY, "string", "6.2.0", "Reads a value and removes it"),
    spec("getex", Id::GetEx, -2, CHANGE, ONE_KEY, "string", "6.2.0", "Reads a value and sets its expiry"),
    spec("getrange", Id::GetRange, 4, READ_SLOW, ONE_KEY, "string", "2.4.0", "Reads a part of a value"),
    spec("getset", Id::GetSet, 3, WRITE, ONE_KEY, "string", "1.0.0", "Stores a value and reads the old one"),
    spec("hello", Id::Hello, -1, BEFORE_AUTH, NO_KEY, "connection", "6.0.0", "Agrees on the protocol"),
    spec("incr", Id::Incr, 2, WRITE, ONE_KEY, "string", "1.0.0", "Counts up by one"),
    spec("incrby", Id::IncrBy, 3, WRITE, ONE_KEY, "string", "1.0.0", "Counts up"),
    spec("incrbyfloat", Id::IncrByFloat, 3, WRITE, ONE_KEY, "string", "2.6.0", "Counts up by a decimal number"),
    spec("info", Id::Info, -1, SERVER, NO_KEY, "server", "1.0.0", "Information about the server"),
    spec("keys", Id::Keys, 2, READ_SLOW, NO_KEY, "generic", "1.0.0", "Lists all keys that match a pattern"),
    spec("memory", Id::Memory, -2, NONE, SECOND, "server", "4.0.0", "What an item takes"),
    spec("mget", Id::MGet, -2, READ, ALL_KEYS, "string", "1.0.0", "Reads many values"),
    spec("mset", Id::MSet, -3, WRITE_SLOW, PAIRS, "string", "1.0.1", "Stores many values"),
    spec("msetnx", Id::MSetNx, -3, WRITE_SLOW, PAIRS, "string", "1.0.1", "Stores many values unless one of the keys is there"),
    spec("multi", Id::Multi, 1, TRANSACTION, NO_KEY, "transactions", "1.2.0", "Begins to queue commands"),
    spec("object", Id::Object, -2, NONE, SECOND, "generic", "2.2.3", "How a value is stored, and when it was used"),
    spec("persist", Id::Persist, 2, CHANGE, ONE_KEY, "generic", "2.2.0", "Removes the expiry"),
    spec("pexpire", Id::PExpire, -3, CHANGE, ONE_KEY, "generic", "2.6.0", "Sets an expiry in milliseconds"),
    spec("pexpireat", Id::PExpireAt, -3, CHANGE, ONE_KEY, "generic", "2.6.0", "Sets an expiry as a Unix time in milliseconds"),
    spec("pexpiretime", Id::PExpireTime, 2, READ, ONE_KEY, "generic", "7.0.0", "Expiry as a Unix time in milliseconds"),
    spec("ping", Id::Ping, -1, FAST, NO_KEY, "connection", "1.0.0", "Answers"),
    spec("psetex", Id::PSetEx, 4, WRITE_SLOW, ONE_KEY, "string", "2.6.0", "Stores a value with an expiry in milliseconds"),
    spec("pttl", Id::PTtl, 2, READ, ONE_KEY, "generic", "2.6.0", "Time to live in milliseconds"),
    spec("quit", Id::Quit, -1, BEFORE_AUTH, NO_KEY, "connection", "1.0.0", "Ends the connection"),
    spec("rename", Id::Rename, 3, CHANGE_SLOW, TWO_KEYS, "generic", "1.0.0", "Gives a value another key"),
    spec("renamenx", Id::RenameNx, 3, CHANGE, TWO_KEYS, "generic", "1.0.0", "Gives a value another key unless that is there"),
    spec("reset", Id::Reset, 1, BEFORE_AUTH, NO_KEY, "connection", "6.2.0", "Makes the connection like a new one"),
    spec("scan", Id::Scan, -2, READ_SLOW, NO_KEY, "generic", "2.8.0", "Lists keys, a part at a time"),
    spec("script", Id::Script, -2, NONE, NO_KEY, "scripting", "2.6.0", "Keeps and forgets scripts"),
    spec("select", Id::Select, 2, CONNECTION, NO_KEY, "connection", "1.0.0", "Chooses a database; there is one"),
    spec("set", Id::Set, -3, WRITE_SLOW, ONE_KEY, "string", "1.0.0", "Stores a value"),
    spec("setex", Id::SetEx, 4, WRITE_SLOW, ONE_KEY, "string", "2.0.0", "Stores a value with an expiry in seconds"),
    spec("setnx", Id::SetNx, 3, WRITE, ONE_KEY, "string", "1.0.0", "Stores a value unless there is one"),
    spec("setrange", Id::SetRange, 4, WRITE_SLOW, ONE_KEY, "string", "2.2.0", "Overwrites a part of a value"),
    spec("slowlog", Id::SlowLog, -2, NONE, NO_KEY, "server", "2.2.12", "Commands about the slow log"),
    spec("strlen", Id::StrLen, 2, READ, ONE_KEY, "string", "2.2.0", "Length of a value"),
    spec("substr", Id::SubStr, 4, READ_SLOW, ONE_KEY, "string", "1.0.0", "Reads a part of a value"),
    spec("time", Id::Time, 1, CONNECTION, NO_KEY, "server", "2.6.0", "The server's clock"),
    spec("touch", Id::Touch, -2, READ, ALL_KEYS, "generic", "3.2.1", "Counts the keys that exist, and uses them"),
    spec("ttl", Id::Ttl, 2, READ, ONE_KEY, "generic", "1.0.0", "Time to live in seconds"),
    spec("type", Id::Type, 2, READ, ONE_KEY, "generic", "1.0.0", "Type of a value: string or none"),
    spec("unlink", Id::Unlink, -2, CHANGE, ALL_KEYS, "generic", "4.0.0", "Removes keys"),
    spec("unwatch", Id::Unwatch, 1, TRANSACTION, NO_KEY, "transactions", "2.2.0", "Watches no keys any more"),
    spec("watch", Id::Watch, -2, TRANSACTION, ALL_KEYS, "transactions", "2.2.0", "Has EXEC do nothing if these keys change"),
];

/// Where GET stands among them.
const GET: usize = 26;
const _: () = assert!(matches!(SPECS[GET].id, Id::Get));

/// The longest name.
const NAME_LEN_MAX: usize = size_of::<u128>();

/// The names as numbers, in the order of [`SPECS`], which is theirs: a comparison is one of
/// numbers, and no call.
static NUMBERS: [u128; SPECS.len()] = {
    let mut numbers = [0; SPECS.len()];
    let mut index = 0;
    while index < SPECS.len() {
        let name = SPECS[index].name.as_bytes();
        let mut padded = [0; NAME_LEN_MAX];
        let mut at = 0;
        while at < name.len() {
            padded[at] = name[at];
            at += 1;
        }
        numbers[index] = u128::from_be_bytes(padded);
        assert!(index == 0 || numbers[index - 1] < numbers[index], "sorted");
        index += 1;
    }
    numbers
};

/// The command of this name, in whatever letters.
pub(super) fn lookup(name: &[u8]) -> Option<&'static Spec> {
    // Most of what comes.
    if name.eq_ignore_ascii_case(b"get") {
        return Some(&SPECS[GET]);
    }
    let mut padded = [0; NAME_LEN_MAX];
    padded.get_mut(..name.len())?.copy_from_slice(name);
    padded.make_ascii_lowercase();
    let number = u128::from_be_bytes(padded);
    let spec = &SPECS[NUMBERS.binary_search(&number).ok()?];
    // Zeros behind a name are no part of it.
    (spec.name.len() == name.len()).then_some(spec)
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
            Id::Eval | Id::EvalSha | Id::Script | Id::FCall | Id::Function => Role::Write,
            _ if self.flags.contains(&"write") => Role::Write,
            _ => Role::Read,
        }
    }

    /// Whether it answers a value, or a part of one.
    pub(super) fn answers_values(&self) -> bool {
        matches!(
            self.id,
            Id::Get
                | Id::GetDel
                | Id::GetEx
                | Id::GetRange
                | Id::GetSet
                | Id::MGet
                | Id::Set
                | Id::SubStr
        )
    }

    /// Whether it is executed by a thread, so that it is not done when it returns.
    pub(super) fn runs_elsewhere(&self) -> bool {
        matches!(self.id, Id::Script | Id::Function) || self.is_script()
    }

    /// Whether it executes a script or a function: the number of its keys, and those, stand
    /// behind its first argument.
    pub(super) fn is_script(&self) -> bool {
        matches!(
            self.id,
            Id::Eval | Id::EvalRo | Id::EvalSha | Id::EvalShaRo | Id::FCall | Id::FCallRo
        )
    }

    /// Whether it may come before authentication.
    pub(super) fn is_before_auth(&self) -> bool {
        self.flags.contains(&"no_auth")
    }

    /// Whether it takes any number of keys, which are executed as they come.
    pub(super) fn is_many(&self) -> bool {
        self.keys.1 == -1 && self.id != Id::MSetNx
    }

    /// Whether it is about several keys as one.
    pub(super) fn is_together(&self) -> bool {
        matches!(self.id, Id::Copy | Id::MSetNx | Id::Rename | Id::RenameNx)
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
        for absent in [
            "",
            "g",
            "gets",
            "lpush",
            "set\0",
            "\0",
            "a name that is much too long",
        ] {
            assert!(lookup(absent.as_bytes()).is_none(), "{absent}");
        }
    }
}
