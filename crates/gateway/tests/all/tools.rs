//! What tools ask of a Redis: INFO beside redis-server's, and lists of connections.

use crate::cell::TestCell;
use crate::redis::corpus::command;
use crate::support;
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use trefoil_cell::Mode;
use trefoil_gateway::observe::{Observatory, ObserveOptions};
use trefoil_gateway::server::{DoorAddress, Doors, Gateway, Protocol, Users};
use trefoil_ports::ServerProcess;

/// What INFO of Redis 7.0 has and this server does not know, or does not have.
const LEFT_OUT: &str = "monotonic_clock atomicvar_api gcc_version process_supervised run_id \
    hz configured_hz lru_clock executable config_file \
    client_recent_max_input_buffer client_recent_max_output_buffer \
    used_memory_rss used_memory_rss_human used_memory_peak used_memory_peak_human \
    used_memory_peak_perc used_memory_startup used_memory_dataset_perc allocator_allocated \
    allocator_active allocator_resident total_system_memory total_system_memory_human \
    used_memory_lua used_memory_vm_eval used_memory_lua_human used_memory_scripts_eval \
    number_of_cached_scripts used_memory_vm_functions used_memory_vm_total \
    used_memory_vm_total_human used_memory_functions used_memory_scripts \
    used_memory_scripts_human allocator_frag_ratio allocator_frag_bytes allocator_rss_ratio \
    allocator_rss_bytes rss_overhead_ratio rss_overhead_bytes mem_fragmentation_ratio \
    mem_fragmentation_bytes mem_total_replication_buffers mem_clients_normal mem_cluster_links \
    mem_allocator lazyfreed_objects \
    current_cow_peak current_cow_size current_cow_size_age current_fork_perc \
    current_save_keys_processed current_save_keys_total rdb_saves rdb_last_load_keys_expired \
    rdb_last_load_keys_loaded aof_rewrites aof_rewrites_consecutive_failures \
    module_fork_last_cow_size \
    instantaneous_ops_per_sec total_net_repl_input_bytes total_net_repl_output_bytes \
    instantaneous_input_kbps instantaneous_output_kbps instantaneous_input_repl_kbps \
    instantaneous_output_repl_kbps expired_stale_perc expired_time_cap_reached_count \
    expire_cycle_cpu_milliseconds total_eviction_exceeded_time current_eviction_exceeded_time \
    pubsubshard_channels total_active_defrag_time current_active_defrag_time \
    unexpected_error_replies total_error_replies dump_payload_sanitizations \
    total_reads_processed total_writes_processed io_threaded_reads_processed \
    io_threaded_writes_processed reply_buffer_shrinks reply_buffer_expands \
    master_replid master_replid2 used_cpu_sys_main_thread used_cpu_user_main_thread";

fn open(cell: &TestCell, users: Option<Users>) -> Gateway {
    let mut options = support::options();
    options.doors[0].protocol = Protocol::Redis;
    options.users = users;
    let doors = Doors::open(&options).unwrap();
    let observatory = Observatory::new(ObserveOptions::of(&options, &doors));
    Gateway::start(
        options,
        doors,
        |index| observatory.counted(index, cell.local()),
        |index| observatory.observer(index),
    )
    .unwrap()
}

fn address(gateway: &Gateway) -> SocketAddr {
    match gateway.addresses()[0].1 {
        DoorAddress::Tcp(address) => address,
        DoorAddress::Unix(_) => panic!("a TCP door was expected"),
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

/// What is answered to a line of words; all of it if the connection ends.
fn ask(stream: &mut TcpStream, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let bytes = [command(&words), command(&["ECHO", "that was all"])].concat();
    stream.write_all(&bytes).unwrap();
    let last = b"$12\r\nthat was all\r\n";
    let (mut answer, mut buffer) = (Vec::new(), [0; 1 << 14]);
    while !answer.ends_with(last) {
        let read = match stream.read(&mut buffer) {
            // The machine stood still.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read.unwrap(),
        };
        match read {
            0 => return String::from_utf8_lossy(&answer).into_owned(),
            len => answer.extend_from_slice(&buffer[..len]),
        }
    }
    answer.truncate(answer.len() - last.len());
    String::from_utf8_lossy(&answer).into_owned()
}

/// Sections, and the names in them.
fn names(info: &str) -> Vec<(&str, BTreeSet<&str>)> {
    let mut sections = Vec::new();
    for line in info.lines().map(str::trim_end) {
        if let Some(section) = line.strip_prefix("# ") {
            sections.push((section, BTreeSet::new()));
        } else if let Some((name, _)) = line.split_once(':')
            && let Some((_, names)) = sections.last_mut()
        {
            names.insert(name);
        }
    }
    sections
}

#[test]
fn info_has_the_names_that_redis_has() {
    let cell = TestCell::start(Mode::R1);
    let gateway = open(&cell, None);
    let server = ServerProcess::start(|port| {
        let mut command = std::process::Command::new("/usr/bin/redis-server");
        let port = port.to_string();
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", ""]);
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null());
        command
    });
    let server = server.expect("Debian's package is installed");
    let mut ours = connect(address(&gateway));
    let mut real = connect(server.address());
    for stream in [&mut ours, &mut real] {
        assert_eq!(ask(stream, "SET k v"), "+OK\r\n");
    }
    for what in [
        "INFO",
        "INFO all",
        "INFO default",
        "INFO everything",
        "INFO stats CPU",
    ] {
        let (our_text, real_text) = (ask(&mut ours, what), ask(&mut real, what));
        let (ours, real) = (names(&our_text), names(&real_text));
        let sections = |of: &[(&str, BTreeSet<&str>)]| -> Vec<String> {
            of.iter()
                .map(|(section, _)| (*section).to_owned())
                .collect()
        };
        assert_eq!(sections(&ours), sections(&real), "{what}");
        let left_out: BTreeSet<&str> = LEFT_OUT.split_whitespace().collect();
        for ((section, ours), (_, real)) in ours.iter().zip(&real) {
            let is_counted = matches!(*section, "Commandstats" | "Errorstats" | "Latencystats");
            let missing: Vec<_> = real.difference(ours).filter(|_| !is_counted).collect();
            let unsaid: Vec<_> = missing
                .iter()
                .filter(|name| !left_out.contains(**name))
                .collect();
            assert!(unsaid.is_empty(), "{section} lacks {unsaid:?}");
            let own = ours
                .difference(real)
                .filter(|name| !name.starts_with("trefoil_"));
            assert_eq!(own.collect::<Vec<_>>(), Vec::<&&str>::new(), "{section}");
            let told: Vec<_> = ours
                .iter()
                .filter(|name| left_out.contains(*name))
                .collect();
            assert!(told.is_empty(), "{section} has {told:?} after all");
        }
    }
    let info = ask(&mut ours, "INFO");
    let value = |name: &str| {
        let mut lines = info.lines();
        let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found
            .unwrap_or_else(|| panic!("{name}"))
            .trim_end()
            .to_owned()
    };
    assert_eq!(value("tcp_port"), address(&gateway).port().to_string());
    assert_eq!(value("db0"), "keys=1,expires=0,avg_ttl=0");
    let number = |name: &str| value(name).parse::<u64>().unwrap();
    assert!(number("used_memory") >= number("used_memory_dataset"));
    assert!(number("used_memory") <= number("maxmemory"));
    assert!(number("total_commands_processed") >= 1);
    assert!(value("used_cpu_user").parse::<f64>().is_ok());
    let port = ask(&mut ours, "CONFIG GET port");
    assert!(port.contains(&value("tcp_port")), "{port}");
}

#[test]
fn connections_are_found_by_what_they_have_said() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let users = "root:a\n[write]\napp:b\n[read]\nlook:c\n";
    std::fs::write(file.path(), users).unwrap();
    let cell = TestCell::start(Mode::R1);
    let gateway = open(&cell, Some(Users::read(file.path()).unwrap()));
    let login = |line: &str| {
        let mut stream = connect(address(&gateway));
        assert!(!ask(&mut stream, line).starts_with('-'), "{line}");
        stream
    };
    let mut root = login("HELLO 2 AUTH root a SETNAME boss");
    let mut apps: Vec<_> = (0..2).map(|_| login("AUTH app b")).collect();
    let mut look = login("HELLO 3 AUTH look c");
    ask(&mut apps[0], "CLIENT SETNAME first");
    ask(&mut look, "CLIENT SETINFO LIB-NAME some-lib");
    ask(&mut look, "CLIENT SETINFO LIB-VER 1.2");
    let list = ask(&mut root, "CLIENT LIST");
    let line = |part: &str| {
        let found: Vec<&str> = list.lines().filter(|line| line.contains(part)).collect();
        assert_eq!(found.len(), 1, "{part} in {list}");
        found[0].to_owned()
    };
    assert!(line(" name=boss ").contains(" user=root redir=-1 resp=2"));
    assert!(line(" name=first ").contains(" user=app redir=-1 resp=2"));
    let looking = line(" user=look ");
    assert!(
        looking.contains(" resp=3 lib-name=some-lib lib-ver=1.2"),
        "{looking}"
    );
    let count = |stream: &mut TcpStream, what: &str| {
        ask(stream, what)
            .lines()
            .filter(|line| line.starts_with("id="))
            .count()
    };
    assert_eq!(count(&mut root, "CLIENT LIST"), 4);
    assert_eq!(count(&mut root, "CLIENT LIST USER app"), 2);
    assert_eq!(count(&mut root, "CLIENT LIST TYPE normal"), 4);
    assert_eq!(count(&mut root, "CLIENT LIST TYPE pubsub"), 0);
    let nobody = ask(&mut root, "CLIENT LIST USER nobody");
    assert_eq!(nobody, "-ERR No such user 'nobody'\r\n");
    let number = |line: &str| line.split(['=', ' ']).nth(1).unwrap().to_owned();
    let (first, looking) = (number(&line(" name=first ")), number(&looking));
    assert_eq!(
        count(
            &mut root,
            &format!("CLIENT LIST ID {first} {looking} 99999")
        ),
        2
    );
    // Not the one that asks, unless it says so; not those of other users, of other numbers.
    assert_eq!(ask(&mut root, "CLIENT KILL USER root"), ":0\r\n");
    assert_eq!(
        ask(&mut root, &format!("CLIENT KILL ID {looking} USER app")),
        ":0\r\n"
    );
    assert_eq!(
        ask(&mut root, &format!("CLIENT KILL ID {first} USER app")),
        ":1\r\n"
    );
    assert_eq!(ask(&mut root, "CLIENT KILL USER app"), ":1\r\n");
    for app in &mut apps {
        assert_eq!(app.read(&mut [0; 10]).unwrap_or(0), 0);
    }
    let refused = ask(&mut look, "CLIENT KILL TYPE normal");
    assert!(refused.starts_with("-NOPERM"), "{refused}");
    // RESET forgets what was said.
    ask(&mut look, "RESET");
    assert_eq!(count(&mut root, "CLIENT LIST USER look"), 0);
    assert_eq!(count(&mut root, "CLIENT LIST USER default"), 0);
    // The other one, which has to authenticate soon, may have left.
    let ended = ask(&mut root, "CLIENT KILL SKIPME no TYPE normal");
    assert!(
        [":1\r\n", ":2\r\n"]
            .iter()
            .any(|count| ended.starts_with(count)),
        "{ended}"
    );
    assert_eq!(root.read(&mut [0; 10]).unwrap_or(0), 0);
}
