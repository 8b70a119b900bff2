//! Commands of Redis that there are not here, and never were meant to be: this is a
//! cache of strings.

/// What a command is about.
pub(super) fn kind_of(name: &[u8]) -> Option<&'static str> {
    const KINDS: [(&str, &[&str]); 8] = [
        (
            "hashes",
            &[
                "hset",
                "hget",
                "hgetall",
                "hdel",
                "hmset",
                "hmget",
                "hincrby",
                "hincrbyfloat",
                "hexists",
                "hkeys",
                "hvals",
                "hlen",
                "hsetnx",
                "hscan",
                "hstrlen",
                "hrandfield",
            ],
        ),
        (
            "lists",
            &[
                "lpush",
                "rpush",
                "lpop",
                "rpop",
                "llen",
                "lrange",
                "lindex",
                "lset",
                "lrem",
                "ltrim",
                "linsert",
                "lpushx",
                "rpushx",
                "blpop",
                "brpop",
                "lmove",
                "blmove",
                "rpoplpush",
                "brpoplpush",
                "lpos",
                "lmpop",
                "blmpop",
                "sort",
            ],
        ),
        (
            "sets",
            &[
                "sadd",
                "srem",
                "smembers",
                "sismember",
                "smismember",
                "scard",
                "spop",
                "sinter",
                "sunion",
                "sdiff",
                "sscan",
                "smove",
                "srandmember",
                "sinterstore",
                "sunionstore",
                "sdiffstore",
            ],
        ),
        (
            "sorted sets",
            &[
                "zadd",
                "zrem",
                "zscore",
                "zrange",
                "zrangebyscore",
                "zrevrange",
                "zcard",
                "zcount",
                "zincrby",
                "zrank",
                "zrevrank",
                "zremrangebyscore",
                "zremrangebyrank",
                "zpopmin",
                "zpopmax",
                "bzpopmin",
                "bzpopmax",
                "zscan",
                "zrevrangebyscore",
                "zunionstore",
                "zinterstore",
                "zmscore",
            ],
        ),
        (
            "streams",
            &[
                "xadd",
                "xread",
                "xreadgroup",
                "xgroup",
                "xack",
                "xlen",
                "xrange",
                "xrevrange",
                "xdel",
                "xtrim",
                "xpending",
                "xclaim",
                "xautoclaim",
                "xinfo",
            ],
        ),
        (
            "messages",
            &[
                "publish",
                "subscribe",
                "unsubscribe",
                "psubscribe",
                "punsubscribe",
                "pubsub",
                "spublish",
                "ssubscribe",
                "sunsubscribe",
            ],
        ),
        (
            "bits",
            &[
                "setbit", "getbit", "bitcount", "bitpos", "bitop", "bitfield",
            ],
        ),
        (
            "places and estimates",
            &[
                "geoadd",
                "geosearch",
                "georadius",
                "pfadd",
                "pfcount",
                "pfmerge",
            ],
        ),
    ];
    let small = name.to_ascii_lowercase();
    let is_it = |names: &[&str]| names.iter().any(|name| name.as_bytes() == small);
    KINDS
        .iter()
        .find(|(_, names)| is_it(names))
        .map(|(kind, _)| *kind)
}

/// The error: it begins as Redis's own, by which clients know what there is.
pub(super) fn words(name: &[u8], kind: &str) -> Vec<u8> {
    let name = String::from_utf8_lossy(name);
    format!("ERR unknown command '{name}': this is a cache of strings, without {kind}").into_bytes()
}
