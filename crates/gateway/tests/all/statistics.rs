//! What a front door counts: beside Debian's memcached, and what has no
//! counterpart there.

use crate::cell::TestCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use trefoil_backend::Reporter as _;
use trefoil_cell::Mode;
use trefoil_gateway::observe::{METRICS, Observatory, ObserveOptions, serve_metrics};
use trefoil_gateway::server::{Door, DoorAddress, Doors, Gateway, GatewayOptions, Protocol};
use trefoil_gateway_core::keyspace::{
    Access, Decide, Evicted, Fault, Halt, Item, Keyspace, ListedItem, NewItem, Seen, Totals,
    Updated,
};
use trefoil_gateway_core::memcache::MemcacheSession;
use trefoil_gateway_core::memory::MemoryKeyspace;
use trefoil_layout::Version;
use trefoil_layout::size_class::ClassCounts;
use trefoil_ports::ServerProcess;

/// A front door over a keyspace in memory.
struct Front {
    gateway: Gateway,
    observatory: Arc<Observatory>,
}

impl Front {
    fn open(change: impl FnOnce(&mut ObserveOptions)) -> Front {
        Front::with(2, change, |_| shaky())
    }

    /// With one event loop.
    fn over<K: Keyspace + Send + 'static>(
        change: impl FnOnce(&mut ObserveOptions),
        keyspace: impl Fn(usize) -> K,
    ) -> Front {
        Front::with(1, change, keyspace)
    }

    fn with<K: Keyspace + Send + 'static>(
        thread_count: usize,
        change: impl FnOnce(&mut ObserveOptions),
        keyspace: impl Fn(usize) -> K,
    ) -> Front {
        let mut options = GatewayOptions::new(vec![Door {
            protocol: Protocol::Memcached,
            address: "127.0.0.1:0".parse().unwrap(),
            tls: None,
        }]);
        options.thread_count = thread_count;
        // As memcached has it.
        options.limits.idle_timeout = None;
        let doors = Doors::open(&options).unwrap();
        let mut observed = ObserveOptions::of(&options, &doors);
        change(&mut observed);
        let observatory = Observatory::new(observed);
        let gateway = Gateway::start_with(
            options,
            doors,
            |index| observatory.counted(index, keyspace(index)),
            |index| observatory.observer(index),
            |_, _| MemcacheSession::new(),
        )
        .unwrap();
        Front {
            gateway,
            observatory,
        }
    }

    fn address(&self) -> SocketAddr {
        match self.gateway.addresses()[0].1 {
            DoorAddress::Tcp(address) => address,
            DoorAddress::Unix(_) => panic!("a TCP door was expected"),
        }
    }

    fn client(&self) -> Client {
        Client::connect(self.address())
    }
}

fn memory() -> MemoryKeyspace {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    MemoryKeyspace::new(now.as_millis() as u64)
}

/// A keyspace where keys named `inquorate` have no quorum and `slow` takes
/// long.
struct Shaky {
    memory: MemoryKeyspace,
    /// What it says that it holds, instead of what it does hold.
    totals: Option<Totals>,
    /// It evicts an item whenever it is asked, while that is watched.
    evicts: bool,
    is_watched: bool,
}

fn shaky() -> Shaky {
    Shaky {
        memory: memory(),
        totals: None,
        evicts: false,
        is_watched: false,
    }
}

impl Keyspace for Shaky {
    fn get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        match key {
            b"inquorate" => return Err(Fault::Inquorate.into()),
            key if key.starts_with(b"slow") => std::thread::sleep(Duration::from_millis(30)),
            _ => {}
        }
        self.memory.get(key, access, with)
    }

    fn set(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<Version, Halt> {
        self.memory.set(key, item)
    }

    fn update(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt> {
        self.memory.update(key, decide)
    }

    fn flush(&mut self, at_ms: u64) -> Result<(), Halt> {
        self.memory.flush(at_ms)
    }

    fn list(
        &mut self,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&ListedItem<'_>),
    ) -> Result<u64, Halt> {
        self.memory.list(cursor, count, each)
    }

    fn totals(&mut self) -> Result<Totals, Halt> {
        if let Some(totals) = self.totals {
            return Ok(totals);
        }
        self.memory.totals()
    }

    fn set_memory_limit(&mut self, bytes: u64) -> Result<(), Halt> {
        self.memory.set_memory_limit(bytes)
    }

    fn value_len_max(&self) -> usize {
        self.memory.value_len_max()
    }

    fn watch_evictions(&mut self, wanted: bool) {
        self.is_watched = wanted;
    }

    fn take_evicted(&mut self, each: &mut dyn FnMut(&Evicted<'_>)) -> u64 {
        if self.evicts && self.is_watched {
            each(&Evicted {
                key: b"a key",
                key_len: 5,
                value_len: 66_560,
                expiry_ms: 0,
                seen: Seen {
                    hit_before: true,
                    idle_s: 9,
                },
            });
        }
        0
    }
}

#[test]
fn evictions_are_logged_for_those_who_watch() {
    let evicting = |_| Shaky {
        evicts: true,
        ..shaky()
    };
    let front = Front::over(|_| {}, evicting);
    let (mut watcher, mut other) = (front.client(), front.client());
    let ask = watcher.0.get_mut();
    ask.write_all(b"watch evictions\r\n").unwrap();
    assert_eq!(watcher.line(), "OK");
    // Whoever evicts, and if nobody asks for anything.
    for _ in 0..3 {
        let line = watcher.line();
        let (stamp, line) = line.split_once(" type=").unwrap();
        assert!(
            stamp.starts_with("ts=") && stamp.contains(" gid="),
            "{stamp}"
        );
        assert_eq!(
            line,
            "eviction key=a%20key fetch=yes ttl=-1 la=9 clsid=31 size=66560"
        );
    }
    drop(watcher);
    let closed = |client: &mut Client| client.stat("", "curr_connections") == "1";
    while !closed(&mut other) {
        std::thread::sleep(Duration::from_millis(10));
    }
    // A watcher of something else sees none.
    let mut watcher = front.client();
    let ask = watcher.0.get_mut();
    ask.write_all(b"watch fetchers\r\n").unwrap();
    assert_eq!(watcher.line(), "OK");
    std::thread::sleep(Duration::from_millis(250));
    other.ask("get k");
    assert!(watcher.line().contains("type=item_get key=k "));
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).unwrap();
        Client(BufReader::new(stream))
    }

    /// Sends a command; returns its answer up to the line that ends it.
    fn ask(&mut self, command: &str) -> Vec<String> {
        let command = format!("{command}\r\nmn\r\n");
        self.0.get_mut().write_all(command.as_bytes()).unwrap();
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "{command:?}");
            if line == "MN\r\n" {
                return lines;
            }
            lines.push(line.trim_end().to_owned());
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn stats(&mut self, group: &str) -> Vec<(String, String)> {
        let pair = |line: String| {
            let mut words = line.splitn(3, ' ').map(str::to_owned);
            assert_eq!(words.next().as_deref(), Some("STAT"), "{line}");
            Some((words.next()?, words.next().unwrap_or_default()))
        };
        let mut lines = self.ask(format!("stats {group}").trim_end());
        assert_eq!(lines.pop().as_deref(), Some("END"));
        lines.into_iter().filter_map(pair).collect()
    }

    fn stat(&mut self, group: &str, name: &str) -> String {
        let stats = self.stats(group);
        let found = stats.iter().find(|(known, _)| known == name);
        found
            .unwrap_or_else(|| panic!("no {name}: {stats:?}"))
            .1
            .clone()
    }
}

/// Debian's memcached on a free port.
fn start_memcached() -> ServerProcess {
    let server = ServerProcess::start(|port| {
        let mut command = Command::new("memcached");
        command
            .args(["-l", "127.0.0.1", "-U", "0", "-u", "nobody"])
            .args(["-p", &port.to_string()])
            .stderr(Stdio::null());
        command
    });
    server.expect("memcached is installed (apt package memcached)")
}

/// Every kind of command, with each of its endings.
const SCRIPT: &[&str] = &[
    "get a",
    "set a 0 0 1\r\n1",
    "get a",
    "get a b a",
    "gets a",
    "gat 100 a",
    "gat 100 b",
    "gats 100 a b",
    "touch a 100",
    "touch b 100",
    "add a 0 0 1\r\n1",
    "add b 0 0 1\r\n1",
    "replace b 0 0 1\r\n2",
    "replace zz 0 0 1\r\n2",
    "append a 0 0 1\r\n1",
    "append zz 0 0 1\r\n1",
    "prepend a 0 0 1\r\n1",
    "cas a 0 0 1 999999\r\n1",
    "cas zz 0 0 1 999999\r\n1",
    "incr a 1",
    "incr zz 1",
    "decr a 1",
    "decr zz 1",
    "set t 0 0 1\r\nx",
    "incr t 1",
    "delete b",
    "delete b",
    "mg a v",
    "mg zz v",
    "ms a 1\r\n5",
    "ma a",
    "ma zz",
    "md a",
    "md a",
    "verbosity 1",
    "version",
    "flush_all",
    "get t",
];

#[test]
fn commands_are_counted_as_memcached_counts_them() {
    let memcached = start_memcached();
    let front = Front::open(|_| {});
    let (mut theirs, mut ours) = (Client::connect(memcached.address()), front.client());
    let is_count = |name: &str| {
        name.starts_with("cmd_")
            || name.ends_with("_hits")
            || name.ends_with("_misses")
            || name == "cas_badval"
    };
    for command in SCRIPT {
        let answers = [theirs.ask(command), ours.ask(command)];
        let counts = [&mut theirs, &mut ours].map(|client| {
            let mut stats = client.stats("");
            stats.retain(|(name, _)| is_count(name));
            stats
        });
        assert_eq!(counts[0], counts[1], "after {command:?}: {answers:?}");
    }
    let gets = ours.stat("", "cmd_get");
    assert!(gets.parse::<u32>().unwrap() > 8, "{gets}");
    for client in [&mut theirs, &mut ours] {
        assert_eq!(client.ask("stats reset"), ["RESET"]);
        assert_eq!(client.stat("", "cmd_get"), "0");
    }
}

#[test]
fn every_name_that_memcached_has_is_there_in_its_order() {
    let memcached = start_memcached();
    let mut classes = ClassCounts::default();
    classes.came(48);
    let totals = Totals {
        classes,
        items: 3,
        entry_bytes: 300,
        limit_bytes: 1 << 20,
        ..Totals::default()
    };
    let filled = |_| Shaky {
        totals: Some(totals),
        ..shaky()
    };
    let front = Front::over(|_| {}, filled);
    let (mut theirs, mut ours) = (Client::connect(memcached.address()), front.client());
    theirs.ask("set a 0 0 1\r\n1");
    let names = |stats: Vec<(String, String)>| -> Vec<String> {
        stats.into_iter().map(|(name, _)| name).collect()
    };
    for group in ["", "items", "slabs", "sizes"] {
        let both = [&mut theirs, &mut ours].map(|client| names(client.stats(group)));
        assert_eq!(both[0], both[1], "{group}");
    }
    // Settings that Trefoil has not are left out, and it has its own.
    let known = names(theirs.stats("settings"));
    let mut ours_only = names(ours.stats("settings"));
    assert!(ours_only.len() > 40);
    ours_only.retain(|name| !known.contains(name));
    assert_eq!(ours_only, ["trefoil_version", "slow_threshold_us"]);
    assert_eq!(ours.stat("settings", "domain_socket"), "NULL");
    assert_eq!(ours.stat("", "limit_maxbytes"), "1048576");
    assert_eq!(ours.ask("stats nonsense"), theirs.ask("stats nonsense"));
}

#[test]
fn items_are_counted_in_memcacheds_classes() {
    let memcached = start_memcached();
    let cell = TestCell::start(Mode::R32);
    let local = TestCell::start(Mode::R1);
    let fronts = [
        Front::over(|_| {}, |_| cell.pending_keyspace()),
        Front::over(|_| {}, |_| local.local()),
    ];
    let mut theirs = Client::connect(memcached.address());
    let mut ours = fronts.each_ref().map(Front::client);
    let long = "v".repeat(67_000);
    let script = [
        "set a 0 0 1\r\n1",
        "set b 0 0 40\r\n0123456789012345678901234567890123456789",
        &format!("set c 0 0 {}\r\n{long}", long.len()),
        "append c 0 0 3\r\nabc",
        "get a b c",
        "get c",
        "incr a 1",
        "touch c 100",
        "gat 100 b",
        "cas c 0 0 1 9\r\n1",
        "delete c",
        "delete c",
        "set c 0 0 3\r\nabc",
    ];
    for command in script {
        let expected = theirs.ask(command);
        for client in &mut ours {
            assert_eq!(client.ask(command), expected, "{command:.20}");
        }
    }
    // What was done to which class; a refused CAS counts for the class of the
    // item there, of the value here.
    let slabs = theirs.stats("slabs");
    let known = |stats: &[(String, String)]| -> Vec<(String, String)> {
        let is_same = |(name, value): &&(String, String)| {
            let names = ["chunk_size", "chunks_per_page", "_hits", "cmd_set"];
            names.iter().any(|end| name.ends_with(end)) && value != "0"
        };
        stats.iter().filter(is_same).cloned().collect()
    };
    assert!(known(&slabs).len() > 6, "{slabs:?}");
    for client in &mut ours {
        assert_eq!(known(&client.stats("slabs")), known(&slabs));
        for class in [1, 2] {
            let name = format!("items:{class}:number");
            assert_eq!(client.stat("items", &name), theirs.stat("items", &name));
        }
        assert!(client.stat("slabs", "active_slabs").parse::<u32>().unwrap() >= 2);
    }
}

#[test]
fn what_has_expired_and_what_a_class_lost_is_counted() {
    let local = TestCell::start(Mode::R1);
    let front = Front::over(|_| {}, |_| local.local());
    let mut client = front.client();
    let long = "v".repeat(67_000);
    // Expired as it comes, and replaced at once.
    client.ask(&format!("set a 0 -1 {}\r\n{long}", long.len()));
    client.ask(&format!("set a 0 0 {}\r\n{long}", long.len()));
    assert_eq!(client.stat("items", "items:31:reclaimed"), "1");
    assert_eq!(client.stat("items", "items:31:number"), "1");
    let requested = client.stat("items", "items:31:mem_requested");
    client.ask("delete a");
    assert_eq!(client.stats("items"), []);
    client.ask(&format!("set a 0 0 {}\r\n{long}", long.len()));
    assert_eq!(client.stat("items", "items:31:mem_requested"), requested);
    client.ask("stats reset");
    assert_eq!(client.stat("items", "items:31:reclaimed"), "0");
}

#[test]
fn a_store_is_logged_behind_its_lookup() {
    let memcached = start_memcached();
    let front = Front::open(|_| {});
    let shown = [memcached.address(), front.address()].map(|address| {
        let (mut watcher, mut client) = (Client::connect(address), Client::connect(address));
        watcher
            .0
            .get_mut()
            .write_all(b"watch fetchers mutations\r\n")
            .unwrap();
        let mut lines = vec![watcher.line()];
        // memcached's threads learn of a watcher a moment after it was told.
        std::thread::sleep(Duration::from_millis(100));
        // One connection: all of it is done by one loop's keyspace.
        for command in [
            "set k 0 0 2\r\nhi",
            "get k",
            "set k 0 0 40\r\n0123456789012345678901234567890123456789",
            "get none",
        ] {
            client.ask(command);
        }
        for _ in 0..6 {
            let line = watcher.line();
            let words = line.split(' ').filter(|word| {
                !["ts=", "gid=", "cfd="]
                    .iter()
                    .any(|name| word.starts_with(name))
            });
            lines.push(words.collect::<Vec<_>>().join(" "));
        }
        lines
    });
    assert_eq!(shown[0], shown[1]);
}

#[test]
fn a_flush_that_was_put_off_is_overridden_by_one_at_once() {
    let memcached = start_memcached();
    let front = Front::over(|_| {}, |_| memory());
    let mut clients = [Client::connect(memcached.address()), front.client()];
    for command in ["set a 0 0 1\r\n1", "flush_all 2", "get a", "flush_all"] {
        for client in &mut clients {
            assert!(client.ask(command).len() < 4, "{command}");
        }
    }
    // memcached's clock is of whole seconds: what is stored in the second of a
    // flush may go with it.
    std::thread::sleep(Duration::from_millis(1100));
    for client in &mut clients {
        client.ask("set b 0 0 1\r\n1");
    }
    std::thread::sleep(Duration::from_millis(2500));
    let found = clients.each_mut().map(|client| client.ask("get a b"));
    assert_eq!(found[0], ["VALUE b 0 1", "1", "END"]);
    assert_eq!(found[0], found[1]);
    // Alone it takes place.
    for client in &mut clients {
        client.ask("flush_all 1");
    }
    std::thread::sleep(Duration::from_millis(2200));
    let found = clients.each_mut().map(|client| client.ask("get a b"));
    assert_eq!((&found[0], &found[1]), (&vec!["END".to_owned()], &found[0]));
}

#[test]
fn connections_and_bytes_are_counted_over_all_loops() {
    let front = Front::open(|_| {});
    let mut clients: Vec<Client> = (0..4).map(|_| front.client()).collect();
    for client in &mut clients {
        client.ask("set k 0 0 3\r\nabc");
        client.ask("get k");
    }
    let statistics = front.observatory.statistics();
    assert_eq!(
        (statistics.connections, statistics.connections_opened),
        (4, 4)
    );
    assert!(statistics.bytes_read > 4 * 30, "{statistics:?}");
    let get = &statistics.commands[0];
    assert_eq!((get.command.as_str(), get.hits + get.misses), ("get", 4));
    assert_eq!(get.durations.iter().map(|d| d.count).sum::<u64>(), 4);
    clients.truncate(1);
    let mut last = clients.pop().unwrap();
    for _ in 0..200 {
        if last.stat("", "curr_connections") == "1" {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(last.stat("", "curr_connections"), "1");
    assert_eq!(last.stat("", "total_connections"), "4");
}

#[test]
fn slow_commands_are_logged_with_key_duration_and_client() {
    let front = Front::open(|options| options.slow_threshold = Some(Duration::from_millis(20)));
    let mut client = front.client();
    client.ask("get fast");
    client.ask(&format!("get slow-{}", "x".repeat(100)));
    assert_eq!(client.stat("slow", "slow_commands"), "1");
    let line = client.stat("slow", "slow:0");
    let fields: Vec<(&str, &str)> = line
        .split(' ')
        .filter_map(|field| field.split_once('='))
        .collect();
    let field = |name| fields.iter().find(|(known, _)| *known == name).unwrap().1;
    let duration: u64 = field("duration_us").parse().unwrap();
    assert!((30_000..5_000_000).contains(&duration), "{line}");
    assert_eq!((field("command"), field("key_len")), ("get", "105"));
    assert_eq!(field("key").chars().count(), 65, "{line}");
    let own = client.0.get_ref().local_addr().unwrap().to_string();
    assert!(field("client").contains(&own), "{line}");
    client.ask("stats reset");
    assert_eq!(client.stats("slow").len(), 2);
}

#[test]
fn hot_keys_and_prefixes() {
    let front = Front::open(|options| options.is_local = true);
    let mut client = front.client();
    client.ask("stats detail on");
    client.ask(&format!("set big:1 0 0 5000\r\n{}", "v".repeat(5000)));
    for _ in 0..5 {
        client.ask("get big:1");
    }
    for _ in 0..20 {
        client.ask("get hot:1");
    }
    assert_eq!(
        client.ask("stats detail dump"),
        [
            "PREFIX big get 5 hit 5 set 1 del 0",
            "PREFIX hot get 20 hit 0 set 0 del 0",
            "END"
        ]
    );
    let keys = front.observatory.hot_keys(1);
    let names: Vec<&[u8]> = keys.iter().map(|key| &key.key[..]).collect();
    assert_eq!(names, [&b"hot:1"[..], b"big:1"]);
    assert!(
        keys[0].ops_per_s > 3.0 && keys[0].bytes_per_s == 0.0,
        "{keys:?}"
    );
    assert!(
        client
            .stat("topkeys", "topkeys:0")
            .starts_with("key=hot:1 ")
    );
}

#[test]
fn metrics_of_a_front_door_that_stands_alone() {
    let front = Front::open(|options| options.slow_threshold = None);
    let mut client = front.client();
    client.ask("get missing");
    assert!(client.ask("get inquorate")[0].starts_with("SERVER_ERROR"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = serve_metrics(
        listener,
        "test".into(),
        Arc::clone(&front.observatory),
        None,
    );
    let endpoint = endpoint.unwrap();
    let ask = |request: &str| {
        let mut stream = TcpStream::connect(endpoint.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let text = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    for metric in &METRICS {
        assert!(
            text.contains(&format!("\n{}", metric.name)),
            "{}",
            metric.name
        );
    }
    for line in [
        r#"trefoil_gateway_commands_total{cell="test",command="get",ending="miss"} 1"#,
        r#"trefoil_gateway_faults_total{cell="test",kind="inquorate"} 1"#,
        r#"trefoil_gateway_command_seconds_count{cell="test",command="get"} 2"#,
        r#"trefoil_gateway_command_seconds_bucket{cell="test",command="get",le="+Inf"} 2"#,
        r#"trefoil_gateway_connections{cell="test"} 1"#,
        r#"trefoil_gateway_slow_commands_total{cell="test"} 0"#,
    ]
    .iter()
    {
        // Labels may stand in any order.
        let (name, rest) = line.split_once('{').unwrap();
        let (labels, value) = rest.split_once("} ").unwrap();
        let found = text.lines().any(|have| {
            have.strip_prefix(name)
                .is_some_and(|have| have.starts_with('{'))
                && labels.split(',').all(|label| have.contains(label))
                && have.ends_with(&format!(" {value}"))
        });
        assert!(found, "{line} is not in {text}");
    }
    assert!(ask("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask("PUT /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    drop(endpoint);
}
