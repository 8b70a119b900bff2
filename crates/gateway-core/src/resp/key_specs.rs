//! Where a command's keys are, what it does to them, and what clients of several servers
//! need to know of it (tips): Redis's own words, which a test compares. Clients find keys
//! by them, and who shares a cell between applications finds prefixes.

use super::table::{Id, Spec};

/// Where keys are found among the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Find {
    /// Up to this one (0: the first; -1: the last argument), each so many further.
    Range { last: i64, step: i64 },
    /// The first one is their number.
    Counted,
}

/// Keys of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeySpec {
    /// What is done to them.
    pub(super) flags: &'static [&'static str],
    /// What is to be known of the flags; may be empty.
    pub(super) notes: &'static str,
    /// The argument that the first of them is, or that their number is.
    pub(super) first: i64,
    pub(super) find: Find,
}

const READ: &[&str] = &["RO", "access"];
/// What is told of a key is no part of its value.
const LOOK: &[&str] = &["RO"];
const STORE: &[&str] = &["OW", "update"];
const INSERT: &[&str] = &["OW", "insert"];
const CHANGE: &[&str] = &["RW", "update"];
const READ_CHANGE: &[&str] = &["RW", "access", "update"];
const READ_DELETE: &[&str] = &["RW", "access", "delete"];
const DELETE: &[&str] = &["RM", "delete"];
const ADD: &[&str] = &["RW", "insert"];
const SET: &[&str] = &["RW", "access", "update", "variable_flags"];

const NOTES_SET: &str = "RW and ACCESS due to the optional `GET` argument";
const NOTES_GET_EX: &str = "RW and UPDATE because it changes the TTL";
const NOTES_WRITES: &str =
    "We cannot tell how the keys will be used so we assume the worst, RW and UPDATE";
const NOTES_READS: &str =
    "We cannot tell how the keys will be used so we assume the worst, RO and ACCESS";

/// What is done to the first key, or to all of them; of two keys, to the second one, too.
fn flags_of(id: Id) -> (&'static [&'static str], &'static [&'static str]) {
    let of_first = match id {
        Id::Append => ADD,
        Id::Decr | Id::DecrBy | Id::GetEx | Id::GetSet | Id::Incr | Id::IncrBy => READ_CHANGE,
        Id::IncrByFloat | Id::Eval | Id::EvalSha | Id::FCall => READ_CHANGE,
        Id::Del | Id::Unlink => DELETE,
        Id::Exists | Id::Memory | Id::Object | Id::StrLen | Id::Touch | Id::Type | Id::Watch => {
            LOOK
        }
        Id::Expire | Id::ExpireAt | Id::Persist | Id::PExpire | Id::PExpireAt => CHANGE,
        Id::SetRange => CHANGE,
        Id::GetDel | Id::Rename | Id::RenameNx => READ_DELETE,
        Id::MSet | Id::PSetEx | Id::SetEx => STORE,
        Id::MSetNx | Id::SetNx => INSERT,
        Id::Set => SET,
        _ => READ,
    };
    let of_second = match id {
        Id::RenameNx => INSERT,
        _ => STORE,
    };
    (of_first, of_second)
}

fn notes_of(id: Id) -> &'static str {
    match id {
        Id::Set => NOTES_SET,
        Id::GetEx => NOTES_GET_EX,
        Id::Eval | Id::FCall => NOTES_WRITES,
        Id::EvalRo | Id::FCallRo => NOTES_READS,
        _ => "",
    }
}

/// The keys of a command.
pub(super) fn key_specs(spec: &Spec) -> Vec<KeySpec> {
    let (of_first, of_second) = flags_of(spec.id);
    let keys = |flags, first, find| KeySpec {
        flags,
        notes: notes_of(spec.id),
        first,
        find,
    };
    const ONE: Find = Find::Range { last: 0, step: 1 };
    match spec.keys {
        _ if spec.is_script() => vec![keys(of_first, 2, Find::Counted)],
        (0, _, _) => Vec::new(),
        (first, -1, step) => vec![keys(of_first, first, Find::Range { last: -1, step })],
        (first, last, _) if last > first => {
            vec![keys(of_first, first, ONE), keys(of_second, last, ONE)]
        }
        (first, ..) => vec![keys(of_first, first, ONE)],
    }
}

/// What is done to the key of SET, whose options decide.
pub(super) fn flags_of_set(has_get: bool) -> &'static [&'static str] {
    match has_get {
        true => READ_CHANGE,
        false => STORE,
    }
}

/// Tips for clients of several servers.
pub(super) fn tips(spec: &Spec) -> &'static [&'static str] {
    match spec.name {
        "client|info" | "client|list" | "pttl" | "time" | "ttl" => &["nondeterministic_output"],
        "object|encoding" | "object|freq" | "object|idletime" | "object|refcount" => {
            &["nondeterministic_output"]
        }
        "command" | "command|docs" | "command|info" | "command|list" | "function|list" => {
            &["nondeterministic_output_order"]
        }
        "config|set" | "script|flush" | "script|load" | "slowlog|reset" => {
            &["request_policy:all_nodes", "response_policy:all_succeeded"]
        }
        "flushall" | "flushdb" | "function|delete" | "function|flush" | "function|load"
        | "function|restore" | "ping" => {
            &["request_policy:all_shards", "response_policy:all_succeeded"]
        }
        "function|kill" | "script|kill" => {
            &["request_policy:all_shards", "response_policy:one_succeeded"]
        }
        "dbsize" => &["request_policy:all_shards", "response_policy:agg_sum"],
        "script|exists" => &[
            "request_policy:all_shards",
            "response_policy:agg_logical_and",
        ],
        "function|stats" | "info" => &[
            "nondeterministic_output",
            "request_policy:all_shards",
            "response_policy:special",
        ],
        "keys" => &["request_policy:all_shards", "nondeterministic_output_order"],
        "scan" => &["nondeterministic_output", "request_policy:special"],
        "mget" => &["request_policy:multi_shard"],
        "mset" => &[
            "request_policy:multi_shard",
            "response_policy:all_succeeded",
        ],
        "msetnx" => &["request_policy:multi_shard", "response_policy:agg_min"],
        "del" | "exists" | "touch" | "unlink" => {
            &["request_policy:multi_shard", "response_policy:agg_sum"]
        }
        "slowlog|get" => &["request_policy:all_nodes", "nondeterministic_output"],
        "slowlog|len" => &[
            "request_policy:all_nodes",
            "response_policy:agg_sum",
            "nondeterministic_output",
        ],
        _ => &[],
    }
}
