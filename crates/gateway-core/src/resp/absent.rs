//! Commands of Redis that there are not here. A test holds the names against those of
//! redis-server: each of its commands is in the table, or here.

/// Kinds of commands, and their names. The first ones never were meant to be: this is a
/// cache of strings.
const KINDS: &[(&str, &str)] = &[
    (
        "hashes",
        "hdel hexists hget hgetall hincrby hincrbyfloat hkeys hlen hmget hmset hrandfield hscan \
         hset hsetnx hstrlen hvals",
    ),
    (
        "lists",
        "blmove blmpop blpop brpop brpoplpush lindex linsert llen lmove lmpop lpop lpos lpush \
         lpushx lrange lrem lset ltrim rpop rpoplpush rpush rpushx sort sort_ro",
    ),
    (
        "sets",
        "sadd scard sdiff sdiffstore sinter sintercard sinterstore sismember smembers smismember \
         smove spop srandmember srem sscan sunion sunionstore",
    ),
    (
        "sorted sets",
        "bzmpop bzpopmax bzpopmin zadd zcard zcount zdiff zdiffstore zincrby zinter zintercard \
         zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange zrangebylex \
         zrangebyscore zrangestore zrank zrem zremrangebylex zremrangebyrank zremrangebyscore \
         zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion zunionstore",
    ),
    (
        "streams",
        "xack xadd xautoclaim xclaim xdel xgroup xinfo xlen xpending xrange xread xreadgroup \
         xrevrange xsetid xtrim",
    ),
    (
        "messages",
        "psubscribe publish pubsub punsubscribe spublish ssubscribe subscribe sunsubscribe \
         unsubscribe",
    ),
    (
        "bits",
        "bitcount bitfield bitfield_ro bitop bitpos getbit setbit",
    ),
    (
        "places and estimates",
        "geoadd geodist geohash geopos georadius georadius_ro georadiusbymember \
         georadiusbymember_ro geosearch geosearchstore pfadd pfcount pfdebug pfmerge pfselftest",
    ),
    ("a comparison of two values", "lcs"),
    (
        "Redis's form of stored values",
        "dump migrate restore restore-asking",
    ),
    ("a choice of keys at random", "randomkey"),
    ("access lists: users have roles", "acl"),
    (
        "files and replication of Redis's kind: copies are the cell's own affair",
        "asking bgrewriteaof bgsave cluster failover lastsave psync readonly readwrite replconf \
         replicaof role save slaveof sync wait",
    ),
    ("further databases", "move swapdb"),
    (
        "a look inside Redis: INFO, SLOWLOG and Prometheus's metrics are here",
        "debug latency lolwut monitor",
    ),
    ("modules", "module"),
    ("an end by clients: an operator stops it", "shutdown"),
];

/// What a command is about.
pub(super) fn kind_of(name: &[u8]) -> Option<&'static str> {
    let is_it = |names: &str| {
        names
            .split_ascii_whitespace()
            .any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
    };
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

/// Each kind and the names of its commands, for the documentation.
pub(super) fn kinds() -> impl Iterator<Item = (&'static str, &'static str)> {
    KINDS.iter().copied()
}

#[cfg(test)]
mod tests {
    use super::super::table::lookup;
    use super::*;

    #[test]
    fn no_name_is_here_twice_or_in_the_table() {
        let mut all: Vec<&str> = kinds()
            .flat_map(|(_, names)| names.split_ascii_whitespace())
            .collect();
        assert!(all.iter().all(|name| lookup(name.as_bytes()).is_none()));
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(kind_of(b"HSET"), Some("hashes"));
        assert_eq!(kind_of(b"get"), None);
    }
}
