//! Scripts through a front door, beside Debian's redis-server: of the store of this
//! process, and of a replicated cell.

use crate::cell::TestCell;
use crate::support::{self, Client, connect};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;
use trefoil_cell::Mode;
use trefoil_gateway::keyspace::{CellOptions, cell_keyspace};
use trefoil_gateway::server::{Doors, Gateway, Protocol};
use trefoil_gateway_core::keyspace::Keyspace;
use trefoil_ports::ServerProcess;

fn open<K: Keyspace + Send + 'static>(keyspace: impl Fn() -> K) -> Gateway {
    let mut options = support::options();
    options.doors[0].protocol = Protocol::Redis;
    let doors = Doors::open(&options).unwrap();
    Gateway::start(options, doors, |_| keyspace(), |_| support::Nobody).unwrap()
}

fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes += &format!("${}\r\n{word}\r\n", word.len());
    }
    bytes.into_bytes()
}

/// What is answered to these words.
fn ask(stream: &mut TcpStream, words: &[&str]) -> String {
    let bytes = [command(words), command(&["ECHO", "that was all"])].concat();
    stream.write_all(&bytes).unwrap();
    let last = b"$12\r\nthat was all\r\n";
    let mut answer = Vec::new();
    let mut buffer = [0; 1 << 14];
    while !answer.ends_with(last) {
        let len = match stream.read(&mut buffer) {
            // The machine stood still.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read.unwrap(),
        };
        assert!(len > 0, "closed after {answer:?}");
        answer.extend_from_slice(&buffer[..len]);
    }
    answer.truncate(answer.len() - last.len());
    String::from_utf8_lossy(&answer).into_owned()
}

fn raw(client: Client<TcpStream>) -> TcpStream {
    client.stream.into_inner()
}

/// What clients' libraries send: locks of redis-py and redlock, session locks, rate
/// limits.
const RELEASE: &str = "local token = redis.call('get', KEYS[1]) \
    if not token or token ~= ARGV[1] then return 0 end redis.call('del', KEYS[1]) return 1";
const EXTEND: &str = "local token = redis.call('get', KEYS[1]) \
    if not token or token ~= ARGV[1] then return 0 end \
    local expiration = redis.call('pttl', KEYS[1]) if not expiration then expiration = 0 end \
    if expiration < 0 then return 0 end \
    local newttl = ARGV[2] if ARGV[3] == '0' then newttl = ARGV[2] + expiration end \
    redis.call('pexpire', KEYS[1], newttl) return 1";
const LIMIT: &str = "local ok = redis.call('set', KEYS[1], 0, 'EX', ARGV[2], 'NX') \
    local consumed = redis.call('incrby', KEYS[1], ARGV[1]) \
    local ttl = redis.call('pttl', KEYS[1]) \
    return {consumed, ttl > 99000}";

/// Words of a command by `|`.
fn scenes() -> Vec<String> {
    let eval = |source: &str, rest: &str| format!("EVAL|{source}|{rest}");
    let mut scenes = vec![
        "SET|lock|mine|PX|100000".to_owned(),
        eval(EXTEND, "1|lock|other|1000|0"),
        eval(EXTEND, "1|lock|mine|100000|0"),
        eval(RELEASE, "1|lock|other"),
        eval(RELEASE, "1|lock|mine"),
        eval(RELEASE, "1|lock|mine"),
        eval(LIMIT, "1|limit|2|100"),
        eval(LIMIT, "1|limit|3|100"),
    ];
    for source in [
        "return 1",
        "return 'text'",
        "return 3.99",
        "return -3.99",
        "return nil",
        "return true",
        "return false",
        "return {1, 'a', {true, false}, 2}",
        "return {1, nil, 3}",
        "return {ok='FINE'}",
        "return {err='BAD thing'}",
        "return redis.status_reply('FINE')",
        "return {KEYS[1], ARGV[1], #KEYS, #ARGV}",
        "return redis.call('set', KEYS[1], ARGV[1])",
        "return redis.call('get', KEYS[1])",
        "return redis.call('get', KEYS[1]) == false",
        "return {redis.call('set', KEYS[1], 1), redis.call('incr', KEYS[1])}",
        "return redis.call('mget', KEYS[1], KEYS[1])",
        "redis.call('set', KEYS[1], 'x') return redis.pcall('incr', KEYS[1])",
        "return redis.pcall('incr', KEYS[1])['err']",
        "return redis.call('set', KEYS[1], 10, 'EX', 1000, 'NX')",
        "redis.call('expire', KEYS[1], 1000) return redis.call('ttl', KEYS[1])",
        "return redis.call('strlen', KEYS[1]) + redis.call('exists', KEYS[1])",
        "return redis.call('append', KEYS[1], 5) .. ''",
        "return {redis.call('getdel', KEYS[1]), redis.call('type', KEYS[1])}",
        "return redis.call('del', KEYS[1])",
        "return redis.call('echo', 'hello')",
        "return redis.sha1hex('abc')",
        "return tostring(1e15) .. tostring(0.1) .. string.format('%05.1f', 2.55)",
        "return cjson.encode({1, 2.5, 'a/b', true, cjson.null, {}, {a = 1}})",
        "return cjson.encode({[1] = 1, [3] = 3})",
        "return cjson.encode({[1000] = 1, a = 2}):len()",
        "return {pcall(cjson.encode, {[1000] = 1})}",
        "return {pcall(cjson.encode, 0 / 0)}",
        "return {pcall(cjson.encode, print)}",
        "return {pcall(cjson.encode, {[true] = 1})}",
        "return cjson.encode({[1.5] = 1})",
        "return cjson.encode({[-1] = {nil, 2}})",
        "return {cjson.encode(1e15), cjson.encode(0.1), cjson.encode(1 / 3), cjson.encode(2 ^ 53)}",
        "return cjson.encode('\\0\\1\\8\\9\\10\\12\\13\\31\\127\\128\\255\\\"\\\\')",
        "return {cjson.encode('x'), cjson.encode(nil), cjson.encode(cjson.null)}",
        "local t = cjson.decode('{\"a\":[1,2.5,null,\"x\\\\u00e9\\\\n\"],\"b\":{}}')          return {t.a[1], t.a[2] * 2, t.a[3] == cjson.null, t.a[4], #t.a, type(t.b)}",
        "return {cjson.decode(' [1, -2, 3e2] '), cjson.decode('true'), type(cjson.decode('null'))}",
        "return cjson.decode('{\"k\":1,\"k\":2}')['k']",
        "return {cjson.decode('12345678901234567890') > 1e19, cjson.decode('0.1') == 0.1}",
        "return cjson.encode(cjson.decode('[[[]],{\"x\":null},\"\\\\ud83d\\\\ude00\"]'))",
        "return {(pcall(cjson.decode, '{')), (pcall(cjson.decode, '[1,]')), (pcall(cjson.decode, ''))}",
        "return {(pcall(cjson.decode)), (pcall(cjson.decode, {})), (pcall(cjson.encode, 1, 2))}",
        "return {type(select(2, pcall(cjson.decode, '[1'))), (pcall(cjson.decode, '1 2'))}",
        "local t = {} t.t = t return (pcall(cjson.encode, t))",
        "redis.call('set', KEYS[1], cjson.encode({n = 1}))          local t = cjson.decode(redis.call('get', KEYS[1])) t.n = t.n + 1 return cjson.encode(t)",
        "return {bit.tobit(0xffffffff), bit.tobit(2 ^ 40 + 1), bit.tobit(2.5), bit.tobit('7')}",
        "return {bit.band(0xff, 0x3c, 0xf0), bit.bor(1, 2, 4), bit.bxor(0xff, 0x0f), bit.band(-1)}",
        "return {bit.bnot(0), bit.bnot(0x12345678), bit.bswap(0x12345678), bit.bswap(0xff)}",
        "return {bit.lshift(1, 31), bit.lshift(1, 32), bit.rshift(-1, 28), bit.arshift(-256, 4)}",
        "return {bit.rol(0x12345678, 12), bit.ror(0x12345678, 12), bit.rol(1, -1)}",
        "return {bit.tohex(1), bit.tohex(-1, 4), bit.tohex(0xabcdef, -6), bit.tohex(255, 20), bit.tohex(5, 0)}",
        "return {pcall(function() local x = bit.band() end)}",
        "return {pcall(function() local x = bit.lshift(1, {}) end)}",
        "return {type(cjson.null), type(cjson), type(bit), cjson._NAME}",
        "local t = {} for i = 1, 10 do t[i] = 11 - i end table.sort(t) return t",
        "return {string.find('hello', 'l+'), string.match('k:12', '%d+'), ('a,b'):gsub(',', '')}",
        "return {pcall(function() error('x', 0) end)}",
        "return {math.floor(3.7), math.max(1, 5), tonumber('0x10'), tonumber('z')}",
        "local ok, e = pcall(redis.call, 'nosuch') return {ok, e.err}",
        "local function f(n) if n < 2 then return n end return f(n-1) + f(n-2) end return f(15)",
        "return type(redis.call) .. type(string) .. type(io_is_not) ",
        "return #string.rep('ab', 1000, '')",
        "local t = {3, 1, 2} table.insert(t, 1, 9) table.insert(t, 7) table.insert(t, 3, 5) return t",
        "local t = {3, 1, 2} return {table.remove(t, 1), table.remove(t), table.remove(t, 9), #t}",
        "local t = {'b', 'c', 'a'} table.sort(t, function(x, y) return x > y end) return t",
        "local t = {'b', 'a'} table.sort(t) return table.concat(t, '-') .. table.concat({1, 2, 3}, ',', 2, 3)",
        "return {pcall(table.sort, {1, {}, 3})}",
        "return {pcall(table.sort, {3, 2, 1}, function() error('no', 0) end)}",
        "return {(pcall(table.insert)), (pcall(table.insert, 1, 2)), (pcall(table.concat, {{}}))}",
        "return {string.rep('x', -1), string.rep(5, 3), ('Ab'):upper(), ('Ab'):lower(), ('abc'):reverse()}",
        "#!lua\nreturn KEYS[1]",
        "#!lua flags=no-writes\nreturn redis.call('exists', KEYS[1])",
        "#!lua flags=no-writes,allow-stale\nreturn redis.pcall('set', KEYS[1], 1)",
        "#!lua flags=nosuch\nreturn 1",
        "#!lua nosuch=1\nreturn 1",
        "#!js\nreturn 1",
        "#!lua return 1",
        "return select('#', unpack({1, 2, 3}))",
    ] {
        scenes.push(eval(source, "1|key|value"));
    }
    scenes.extend(
        [
            "GET|key",
            "SCRIPT|LOAD|return {KEYS[1], ARGV[1]}",
            "EVALSHA|2f18e84d1b5a54ae8a5cbf7bb8ab8e0bd4d7a2b0|0",
            "EVALSHA|x|0",
            "EVALSHA|E0E1F9FABFC9D4800C877A703B823AC0578FF8DB|0",
            "EVAL|return 1|0",
            "EVALSHA|E0E1F9FABFC9D4800C877A703B823AC0578FF8DB|0",
            "SCRIPT|EXISTS|e0e1f9fabfc9d4800c877a703b823ac0578ff8db|x",
            "SCRIPT|FLUSH",
            "SCRIPT|FLUSH|NEVER",
            "SCRIPT|EXISTS|e0e1f9fabfc9d4800c877a703b823ac0578ff8db",
            "EVAL|return 1|x",
            "EVAL|return 1|-1",
            "EVAL|return 1|2|a",
            "EVAL|return 1",
            "EVAL",
            "EVAL|return #ARGV|0|a|b",
            "SCRIPT|LOAD",
            "SCRIPT|LOAD|return {",
            "SCRIPT|LOAD|#!lua flags=nosuch\nreturn 1",
            "SCRIPT|LOAD|#!lua flags=no-writes\nreturn KEYS[1]",
            "EVAL_RO|#!lua\nreturn 1|0",
            "EVAL_RO|#!lua flags=no-writes\nreturn 1|0",
            "SCRIPT|KILL",
            "SCRIPT|KILL|x",
        ]
        .map(str::to_owned),
    );
    scenes
}

/// A library as users write them.
const LIBRARY: &str = "#!lua name=lib
local function head(keys, args) return {#keys, #args, keys[1] or 'none', args[1] or 'none'} end
redis.register_function('head', head)
redis.register_function{function_name='ro', callback=function(keys) return redis.call('get', keys[1]) end, flags={'no-writes'}, description='reads'}
redis.register_function('err', function(keys, args) error('bad') end)
redis.register_function('err2', function(keys, args) return redis.call('incr', keys[1]) end)
redis.register_function('err3', function(keys, args) return redis.error_reply('MY thing') end)
redis.register_function('err4', function(keys, args) error({err='MY thing'}) end)
redis.register_function('err5', function(keys, args) return nosuch end)
redis.register_function('kv', function(keys, args) return KEYS[1] end)
redis.register_function{function_name='row', callback=function(keys, args) return redis.call('set', keys[1], 1) end, flags={'no-writes'}}
redis.register_function('glob', function(keys, args) x = 1 end)
redis.register_function('count', function(keys, args) return redis.call('incrby', keys[1], args[1]) end)
";

/// Words of a command by `|`.
fn scenes_of_functions() -> Vec<String> {
    let load = |program: &str| format!("FUNCTION|LOAD|#!lua name=a\n{program}");
    let mut scenes: Vec<String> = [
        "FUNCTION|FLUSH",
        "FUNCTION|LOAD|return 1",
        "FUNCTION|LOAD|#!lua\nreturn 1",
        "FUNCTION|LOAD|#!lua name=\nreturn 1",
        "FUNCTION|LOAD|#!lua name=a-b\nreturn 1",
        "FUNCTION|LOAD|#!js name=a\nreturn 1",
        "FUNCTION|LOAD|#!lua name=a foo=b\nreturn 1",
        "FUNCTION|LOAD|#!lua name=a name=b\nreturn 1",
        "FUNCTION|LOAD|#!lua name=a",
        "FUNCTION|LOAD|FOO|#!lua name=a\nreturn 1",
        "FUNCTION|LOAD|REPLACE",
        "FUNCTION|LOAD",
        "FUNCTION",
        "FUNCTION|FOO",
        "FCALL|nosuch|0",
        "FCALL|nosuch|x",
    ]
    .map(str::to_owned)
    .to_vec();
    for program in [
        "return 1",
        "return {",
        "redis.register_function('f')",
        "redis.register_function()",
        "redis.register_function(1, 2)",
        "redis.register_function('f', 2)",
        "redis.register_function('f-g', function() end)",
        "redis.register_function{}",
        "redis.register_function{function_name=1}",
        "redis.register_function{function_name='f'}",
        "redis.register_function{function_name='f',callback=1}",
        "redis.register_function{callback=function() end}",
        "redis.register_function{function_name='f',callback=function() end,flags=1}",
        "redis.register_function{function_name='f',callback=function() end,flags={'x'}}",
        "redis.register_function{function_name='f',callback=function() end,x=1}",
        "redis.register_function{function_name='f',callback=function() end,[1]=1}",
        "x = 1 redis.register_function('f', function() end)",
        "redis.register_function{function_name='f',callback=function() return 7 end,description='d',flags={'no-writes','allow-stale'}}",
        "redis.register_function('g', function() end)",
    ] {
        scenes.push(load(program));
    }
    scenes.extend(
        [
            "FCALL|f|0",
            "FCALL_RO|F|0",
            "FUNCTION|LIST",
            "FUNCTION|LIST|WITHCODE",
            "FUNCTION|LIST|LIBRARYNAME|a*|withcode",
            "FUNCTION|LIST|LIBRARYNAME|b*",
            "FUNCTION|LIST|LIBRARYNAME",
            "FUNCTION|LIST|FOO",
            "FUNCTION|LIST|WITHCODE|WITHCODE",
            "FUNCTION|STATS",
            "FUNCTION|LOAD|#!lua name=b\nredis.register_function('F', function() end)",
            "FUNCTION|LOAD|REPLACE|#!lua name=a\nredis.register_function('f', function() return 8 end)",
            "FUNCTION|LOAD|REPLACE|#!lua name=a\nreturn 1",
            "FUNCTION|LOAD|REPLACE|#!lua name=a\nredis.register_function{function_name='f',callback=function() return 8 end,description=1}",
            "FUNCTION|LIST",
            "FCALL|f|0",
            "FUNCTION|DELETE|A",
            "FUNCTION|DELETE|a",
            "FCALL|f|0",
            "FUNCTION|KILL",
            "FUNCTION|FLUSH|x",
            "FUNCTION|FLUSH|SYNC|x",
            "FUNCTION|FLUSH|ASYNC",
            "FUNCTION|STATS",
        ]
        .map(str::to_owned),
    );
    scenes.push(format!("FUNCTION|LOAD|{LIBRARY}"));
    scenes.extend(
        [
            "SET|k|text",
            "FCALL|head|0",
            "FCALL|HEAD|1|k|a|b",
            "FCALL|head|x",
            "FCALL|head|-1",
            "FCALL|head|2|k",
            "FCALL|head",
            "FCALL|ro|1|k",
            "FCALL_RO|ro|1|k",
            "FCALL_RO|head|0",
            "FCALL_RO|row|1|k",
            "FCALL|row|1|k",
            "FCALL|err|1|k",
            "FCALL|err2|1|k",
            "FCALL|err3|1|k",
            "FCALL|err4|1|k",
            "FCALL|err5|1|k",
            "FCALL|kv|1|k",
            "FCALL|glob|1|k",
            "FCALL|count|1|n|5",
            "FCALL|count|1|n|-2",
            "GET|n",
            "DEL|n|k",
        ]
        .map(str::to_owned),
    );
    scenes
}

/// An error of a command in a library of several lines names the first one here.
fn without_line(answer: String) -> String {
    match answer.split_once(", on @user_function:") {
        Some((words, _)) => words.to_owned(),
        None => answer,
    }
}

fn assert_same(gateway: &Gateway) {
    let server = ServerProcess::start(|port| {
        let mut command = std::process::Command::new("/usr/bin/redis-server");
        let port = port.to_string();
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", ""]);
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null());
        command
    });
    let server = server.expect("Debian's package is installed");
    let mut real = TcpStream::connect(server.address()).unwrap();
    real.set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut ours = raw(connect(gateway));
    let mut different = Vec::new();
    for scene in scenes().into_iter().chain(scenes_of_functions()) {
        let words: Vec<&str> = scene.split('|').collect();
        let answers = (ask(&mut ours, &words), ask(&mut real, &words));
        let answers = (without_line(answers.0), without_line(answers.1));
        if answers.0 != answers.1 {
            different.push((scene, answers));
        }
    }
    // Errors of Lua are alike in what clients look at: their first words.
    for (source, words) in [
        ("return nosuch", 6),
        ("return redis.call('nosuch', KEYS[1])", 6),
        ("return redis.call('get')", 6),
        (
            "redis.call('set', KEYS[1], 'x') return redis.call('incr', KEYS[1])",
            6,
        ),
        ("error('x', 0)", 2),
        ("error({err='MINE x'})", 2),
        ("return {", 4),
        ("nosuch = 1", 6),
        ("return loadfile('/etc/passwd')", 2),
        ("return redis.call()", 6),
        ("return redis.call('subscribe', 'x')", 1),
    ] {
        let of = |stream: &mut TcpStream| {
            let answer = ask(stream, &["EVAL", source, "1", "key"]);
            let first = answer.split(' ').take(words).collect::<Vec<_>>().join(" ");
            (first, ask(stream, &["DEL", "key"]).len())
        };
        let answers = (of(&mut ours), of(&mut real));
        if answers.0 != answers.1 {
            different.push((source.to_owned(), (answers.0.0, answers.1.0)));
        }
    }
    assert!(different.is_empty(), "(ours, Redis's): {different:#?}");
}

#[test]
fn scripts_are_answered_as_redis_answers() {
    let cell = TestCell::start(Mode::R1);
    assert_same(&open(|| cell.local()));
}

#[test]
fn scripts_over_a_replicated_cell_are_answered_as_redis_answers() {
    let running = TestCell::start(Mode::R32);
    let cell = running.client();
    let gateway = open(|| cell_keyspace(cell.clone(), CellOptions::default()));
    assert_same(&gateway);
    // Everybody counts by a script that reads first; everything counts.
    let count = "local n = tonumber(redis.call('get', KEYS[1]) or '0') \
                 redis.call('set', KEYS[1], n + 1, 'PX', 100000) return n + 1";
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut stream = raw(connect(&gateway));
                for _ in 0..25 {
                    let answer = ask(&mut stream, &["EVAL", count, "1", "counter"]);
                    assert!(answer.starts_with(':'), "{answer}");
                }
            });
        }
    });
    let mut stream = raw(connect(&gateway));
    assert_eq!(ask(&mut stream, &["GET", "counter"]), "$3\r\n100\r\n");
}

/// What a script must not do is refused, and nothing of a script that fails is stored.
#[test]
fn scripts_are_kept_within_bounds() {
    let cell = TestCell::start(Mode::R1);
    let gateway = open(|| cell.local());
    let mut stream = raw(connect(&gateway));
    let mut different = Vec::new();
    let mut eval = |source: &str| ask(&mut stream, &["EVAL", source, "1", "key"]);
    for (source, expected) in [
        (
            "redis.call('set', KEYS[1], 'x') error('no')",
            "-ERR user_script:1: no",
        ),
        (
            "redis.call('set', 'other', 'x')",
            "-ERR Script attempted to access a key",
        ),
        (
            "redis.call('mset', KEYS[1], 'x', 'other', 'y')",
            "-ERR Script attempted",
        ),
        (
            "return redis.call('flushall')",
            "-ERR This Redis command is not allowed",
        ),
        (
            "return redis.call('hset', KEYS[1], 'a', 'b')",
            "-ERR unknown command 'hset': this is a cache",
        ),
        ("while true do end", "-ERR the script ran for too long"),
        (
            "while true do pcall(function() while true do end end) end",
            "-ERR the script ran for too long",
        ),
        (
            "local s = 'x' while true do s = s .. s end",
            "-ERR the script needs more than",
        ),
        (
            "local t = {} while true do t[#t + 1] = {} end",
            "-ERR the script",
        ),
        (
            "local t = {1} for i = 1, 30 do t = {t, t} end return t",
            "-ERR the script's answer has too many",
        ),
        (
            "local t = {} t[1] = t return t",
            "-ERR the script's answer has too many",
        ),
        (
            "local at = string.find(string.rep('a', 30000), string.rep('a-', 60) .. 'b') return at",
            "-ERR user_script:1: the pattern has too many",
        ),
        // Memory that is not Lua's own.
        (
            "local s = string.rep('x', 8388608) local t = {} for i = 1, 100 do t[i] = s end return t",
            "-ERR the script needs more than",
        ),
        (
            "redis.call('set', KEYS[1], string.rep('x', 1048576)) local t = {} \
             for i = 1, 100 do t[i] = KEYS[1] end return redis.call('mget', unpack(t))",
            "-ERR the answer is too long for a script",
        ),
        (
            "local s = string.rep('x', 8388608) local t = {} for i = 1, 100 do t[i] = s end \
             return redis.call('del', unpack(t))",
            "-ERR the script needs more than",
        ),
        // Work that Lua does without looking at the time.
        (
            "local at = string.find(string.rep('a', 1000000), string.rep('a', 500000) .. 'b', 1, true)",
            "-ERR user_script:1: the string that is looked for is too long",
        ),
        (
            "local at = string.find('[x' .. string.rep('a', 3000), '%b[x' .. string.rep('a*', 100) .. ']')",
            "-ERR user_script:1: the pattern has too many",
        ),
        (
            "for i = 1, 900 do redis.sha1hex(string.rep('a', 1000000)) end",
            "-ERR the script ran for too long",
        ),
        (
            "table.insert({}, -2147483647, 1)",
            "-ERR user_script:1: bad argument #2 to 'insert' (position out of bounds)",
        ),
        (
            "table.insert({}, 0 / 0, 1)",
            "-ERR user_script:1: bad argument #2 to 'insert' (position out of bounds)",
        ),
        // A few values pass for a table of a thousand millions.
        (
            "local t = {} for at = 25, 0, -1 do t[2 ^ at] = 1 end table.insert(t, 1, 0)",
            "-ERR user_script:1: the table is too long",
        ),
        (
            "local t = {} for at = 25, 0, -1 do t[2 ^ at] = 1 end table.remove(t, 1)",
            "-ERR user_script:1: the table is too long",
        ),
        (
            "local t = {} for i = 1, 1000000 do t[i] = i * 7919 % 1000003 end table.sort(t) return 1",
            "-ERR the script ran for too long",
        ),
        (
            "local t = {} for i = 1, 500000 do t[i] = i * 7919 % 500009 end \
             while true do table.sort(t, rawequal) end",
            "-ERR",
        ),
        (
            "return #string.rep('x', 2e9)",
            "-ERR the script needs more than",
        ),
        (
            "local s = string.rep('x', 1000000) while true do s:upper() s:lower() s:reverse() end",
            "-ERR the script ran for too long",
        ),
        (
            "local t = {} for i = 1, 100000 do t[i] = i end while true do table.insert(t, 1, 0) table.remove(t, 1) end",
            "-ERR the script ran for too long",
        ),
        (
            "local t = {} for i = 1, 100000 do t[i] = 'x' end while true do table.concat(t) end",
            "-ERR the script ran for too long",
        ),
        // JSON that is deep, or takes long.
        (
            "local t = cjson.decode(string.rep('[', 100000))",
            "-ERR user_script:1: Cannot decode JSON: recursion limit exceeded",
        ),
        ("return cjson.decode('{')", "-ERR Cannot decode JSON: EOF"),
        // Without a byte left, whatever holds many values at a time.
        (
            "local d = {} for i = 1, 125 do d = {d} end pcall(cjson.encode, {}) \
             local keep, n = {}, 0 \
             local function f(len) n = n + 1 keep = {keep, string.rep('x', len) .. n} end \
             for _, len in ipairs({65536, 4096, 512, 64, 1}) do while pcall(f, len) do end end \
             cjson.encode(d) while true do end",
            "-ERR",
        ),
        (
            "local d, t = {}, {} for i = 1, 6000 do t[i] = 'k' end \
             pcall(redis.call, 'del', unpack(t, 1, 10)) pcall(unpack, t) \
             local keep, n = {}, 0 \
             local function f(len) n = n + 1 keep = {keep, string.rep('x', len) .. n} end \
             for _, len in ipairs({65536, 4096, 512, 64, 1}) do while pcall(f, len) do end end \
             redis.pcall(unpack(t)) while true do end",
            "-ERR",
        ),
        (
            "local t = {} for i = 1, 7500 do t[i] = 'k' end return redis.call('del', unpack(t))",
            "-ERR too many words in a command of a script",
        ),
        (
            "local t = {} for i = 1, 200 do t = {t} end local text = cjson.encode(t)",
            "-ERR user_script:1: Cannot serialise, excessive depth",
        ),
        (
            "local t = {} for i = 1, 30 do t = {t, t} end while true do pcall(cjson.encode, t) end",
            "-ERR the script ran for too long",
        ),
        (
            "return os",
            "-ERR user_script:1: Script attempted to access nonexistent global variable 'os'",
        ),
        ("return io", "-ERR user_script:1: Script attempted"),
        ("return debug", "-ERR user_script:1: Script attempted"),
        ("return load", "-ERR user_script:1: Script attempted"),
        ("return loadstring", "-ERR user_script:1: Script attempted"),
        ("return coroutine", "-ERR user_script:1: Script attempted"),
        ("setmetatable(_G, nil)", "-ERR"),
        ("\u{1b}Lua", "-ERR Error compiling script"),
    ] {
        let answer = eval(source);
        if !answer.starts_with(expected) {
            different.push((source, expected, answer));
        }
    }
    assert!(different.is_empty(), "{different:#?}");
    assert_eq!(eval("return redis.call('exists', KEYS[1])"), ":0\r\n");
    // Nothing that one script does is there for the next.
    assert_eq!(eval("string.x = 1 redis.y = 1 return 1"), ":1\r\n");
    assert_eq!(
        eval("return {string.x == nil, redis.y == nil}"),
        "*2\r\n:1\r\n:1\r\n"
    );
    let two = ask(&mut stream, &["EVAL", "return 1", "2", "a", "b"]);
    assert!(two.starts_with("-ERR a script is about one key"), "{two}");
    let hash = ask(&mut stream, &["HGETALL", "a"]);
    assert!(
        hash.starts_with("-ERR unknown command 'HGETALL': this is a cache"),
        "{hash}"
    );
    // In a transaction they are executed one after another.
    let queued = [
        &["MULTI"][..],
        &["EVAL", "return 7", "0"],
        &["PING"],
        &["EXEC"],
    ];
    for words in queued {
        stream.write_all(&command(words)).unwrap();
    }
    let answer = ask(&mut stream, &["PING"]);
    assert_eq!(
        answer,
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:7\r\n+PONG\r\n+PONG\r\n"
    );
}

/// Functions are everybody's, keep nothing between two calls, and have the bounds of scripts.
#[test]
fn functions_are_kept_within_bounds() {
    let cell = TestCell::start(Mode::R1);
    let gateway = open(|| cell.local());
    let (mut one, mut other) = (raw(connect(&gateway)), raw(connect(&gateway)));
    let program =
        |body: &str| format!("#!lua name=mine\nlocal n = 0 local call = redis.call\n{body}");
    let function = |name: &str, body: &str| {
        program(&format!(
            "redis.register_function('{name}', function(keys, args) {body} end)"
        ))
    };
    let described = |description: &str, flags: &str| {
        program(&format!(
            "redis.register_function{{function_name='next', callback=function() end, \
             description={description}, flags={flags}}}"
        ))
    };
    let mut load = |program: &str| ask(&mut one, &["FUNCTION", "LOAD", "REPLACE", program]);
    let counting = function("next", "n = n + 1 call('append', keys[1], n) return n");
    assert_eq!(load(&counting), "$4\r\nmine\r\n");
    let mut call = |name: &str, keys: &[&str]| {
        let count = keys.len().to_string();
        ask(&mut other, &[&["FCALL", name, &count], keys].concat())
    };
    for _ in 0..2 {
        assert_eq!(call("next", &["k"]), ":1\r\n");
    }
    let several = call("next", &["k", "l"]);
    assert!(
        several.starts_with("-ERR a script is about one key"),
        "{several}"
    );
    // What cannot be loaded leaves the one before it.
    for (library, words) in [
        (
            program("while true do end"),
            "ERR the script ran for too long",
        ),
        (
            program("local s = 'x' while true do s = s .. s end"),
            "ERR the script needs more",
        ),
        (
            program("call('get', 'k')"),
            "ERR user_function:3: commands can only be called in",
        ),
        (
            program("for i = 1, 2000 do redis.register_function('f' .. i, function() end) end"),
            "ERR too many functions in the library",
        ),
        (
            described("('x'):rep(262145)", "{}"),
            "ERR the function's description is too long",
        ),
        (
            described("'d'", "{'no-writes', ('x'):rep(1000000)}"),
            "ERR unknown flag given",
        ),
        (
            program("pcall(redis.register_function)"),
            "ERR No functions registered",
        ),
    ] {
        let answer = load(&library);
        let answer = answer.replace("Error registering functions: ERR ", "");
        assert!(answer.starts_with(&format!("-{words}")), "{answer}");
        assert_eq!(call("next", &["k"]), ":1\r\n");
    }
    assert_eq!(ask(&mut one, &["GET", "k"]), "$9\r\n111111111\r\n");
    for (body, words) in [
        (
            "call('set', keys[1], 'x') while true do end",
            "ERR the script ran for too long",
        ),
        (
            "call('set', keys[1], 'x') error('no')",
            "ERR user_function:3: no",
        ),
        (
            "call('set', 'other', 'x')",
            "ERR Script attempted to access a key",
        ),
        (
            "redis.register_function('z', function() end)",
            "ERR redis.register_function can only",
        ),
        (
            "return os",
            "ERR user_function:3: Script attempted to access nonexistent",
        ),
    ] {
        let mut load = |program: &str| ask(&mut one, &["FUNCTION", "LOAD", "REPLACE", program]);
        assert_eq!(load(&function("bad", body)), "$4\r\nmine\r\n");
        let answer = call("bad", &["k"]);
        assert!(answer.starts_with(&format!("-{words}")), "{answer}");
        assert!(call("next", &["k"]).starts_with("-ERR Function not found"));
    }
    assert_eq!(ask(&mut one, &["GET", "k"]), "$9\r\n111111111\r\n");
    for words in [&["FUNCTION", "DUMP"][..], &["FUNCTION", "RESTORE", "x"]] {
        assert!(ask(&mut one, words).contains("is not here"));
    }
    // In a transaction they are executed one after another.
    for words in [
        &["MULTI"][..],
        &["FCALL", "bad", "1", "k"],
        &["PING"],
        &["EXEC"],
    ] {
        one.write_all(&command(words)).unwrap();
    }
    let answer = ask(&mut one, &["PING"]);
    assert!(
        answer.starts_with("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n-ERR"),
        "{answer}"
    );
}

/// Scripts that run for long hold nobody else up.
#[test]
fn a_long_script_leaves_others_their_turn() {
    let cell = TestCell::start(Mode::R1);
    let gateway = open(|| cell.local());
    let mut slow: Vec<TcpStream> = (0..8).map(|_| raw(connect(&gateway))).collect();
    for stream in &mut slow {
        let endless = command(&["EVAL", "while true do end", "1", "key"]);
        stream.write_all(&endless).unwrap();
    }
    let mut quick = raw(connect(&gateway));
    for _ in 0..200 {
        assert_eq!(ask(&mut quick, &["PING"]), "+PONG\r\n");
    }
    // All of that was answered before the last of them was.
    let last = slow.last_mut().unwrap();
    last.set_nonblocking(true).unwrap();
    let read = last.read(&mut [0]);
    assert!(read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    // One leaves; the others are told.
    drop(slow.pop());
    for mut stream in slow {
        assert!(ask(&mut stream, &["PING"]).starts_with("-ERR the script ran for too long"));
    }
}

/// What SCRIPT KILL ends, and whoever leaves, makes room for others; nothing of it is stored.
#[test]
fn scripts_are_ended_when_nobody_wants_them() {
    let cell = TestCell::start(Mode::R1);
    let gateway = open(|| cell.local());
    let endless = |stream: &mut TcpStream| {
        let source = "redis.call('set', KEYS[1], 'x') while true do end";
        stream
            .write_all(&command(&["EVAL", source, "1", "key"]))
            .unwrap();
    };
    let mut other = raw(connect(&gateway));
    let mut killed = 0;
    // It may be over before it is killed, on a machine that stands still.
    for _ in 0..20 {
        let mut stream = raw(connect(&gateway));
        endless(&mut stream);
        let mut answer = ask(&mut other, &["SCRIPT", "KILL"]);
        while answer.starts_with("-NOTBUSY No scripts in execution right now.")
            && killed == 0
            && !has_answer(&mut stream)
        {
            answer = ask(&mut other, &["SCRIPT", "KILL"]);
        }
        let ended = ask(&mut stream, &["PING"]);
        if ended.starts_with("-ERR Script killed by user with SCRIPT KILL.") {
            assert_eq!(answer, "+OK\r\n");
            killed += 1;
            break;
        }
        assert!(
            ended.starts_with("-ERR the script ran for too long"),
            "{ended}"
        );
    }
    assert_eq!(killed, 1);
    assert_eq!(ask(&mut other, &["EXISTS", "key"]), ":0\r\n");
}

fn has_answer(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let has = stream.peek(&mut [0]).is_ok();
    stream.set_nonblocking(false).unwrap();
    has
}
