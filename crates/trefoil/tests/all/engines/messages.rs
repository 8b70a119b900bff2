//! Mutations by way of an engine: messages that it hands to the backends' rings.

use super::by_hand::Session;
use super::certificates::Certs;
use super::{
    Engine, PATIENCE, await_engine, client, get, metric, said_by_metrics, set, stored, under_load,
    up, value,
};
use crate::support::{Cell, Hanging, free_port, kill, text};
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use trefoil_client::{Client, Completion, Expected, Mutated, Options, SetOptions};
use trefoil_layout::Version;
use trefoil_layout::data::DataEntry;
use trefoil_layout::message::{Answer, Request, RequestHead, parse_answer};
use trefoil_layout::op::{Action, Mutation, Outcome};
use trefoil_softnic_core::Event;
use trefoil_softnic_core::limits::MESSAGE_COUNT_MAX;
use trefoil_softnic_core::wire::{Message, MessageStatus};

fn by_messages(engine: &Engine) -> Options {
    Options {
        engine_messages: true,
        ..engine.options()
    }
}

/// Its metrics' port.
fn metrics() -> (SocketAddr, String) {
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    (metrics, metrics.to_string())
}

/// What this client asks for by message, of each kind, and is told.
fn mutate(client: &mut Client, round: u64) {
    for number in 0..20 {
        let key = format!("k{round} {number}");
        set(client, &key, &value(&key, round, 500));
        assert_eq!(get(client, &key), Some(value(&key, round, 500)));
        let current = client.last_version();
        let swap = |client: &mut Client, expected: Version, to: u64| {
            let expected = Expected::Version(expected);
            let text = value(&key, to, 100);
            client.cas(key.as_bytes(), expected, &text, SetOptions::default())
        };
        let swapped = swap(client, current, round + 1);
        let Ok(Mutated::Stored { version }) = swapped else {
            panic!("{key}: {swapped:?}");
        };
        // What it expects is there no more.
        let late = swap(client, current, round + 2);
        assert!(
            matches!(late, Ok(Mutated::Exists { present }) if present == Some(version)),
            "{late:?}"
        );
        assert_eq!(get(client, &key), Some(value(&key, round + 1, 100)));
        let erased = client.erase(key.as_bytes());
        assert!(matches!(erased, Ok(Mutated::Stored { .. })), "{erased:?}");
        assert_eq!(get(client, &key), None);
    }
}

/// SET, ERASE and CAS, those that fail, too. Who does not want messages sends none.
#[test]
fn mutations_go_by_messages_where_that_is_wanted() {
    for (mode, copies) in [("R=1", 1), ("R=3.2", 3)] {
        let (_dir, cell) = up(mode);
        let engine = Engine::beside(&cell);
        let mut without = engine.client(&cell);
        mutate(&mut without, 1);
        drop(without);
        let counted = engine.stop();
        assert_eq!(counted["messages"], 0, "{counted:?}");
        let engine = Engine::beside(&cell);
        let mut with = client(&cell, by_messages(&engine));
        mutate(&mut with, 2);
        with.finish(PATIENCE);
        drop(with);
        let counted = engine.stop();
        // Twenty times a SET, two CASes and an ERASE; the second CAS may know from the first
        // two. Some have gone by calls where this machine stood still.
        assert!(counted["messages"] >= 40 * copies, "{mode}: {counted:?}");
        assert_eq!(counted["messages_lost"], 0, "{counted:?}");
    }
}

/// What is longer than a message goes by a call, and many at once have their own answers.
#[test]
fn many_sessions_have_many_messages_under_way() {
    const CLIENTS: usize = 4;
    const KEYS: u64 = 200;
    let (_dir, cell) = up("R=3.2");
    let (port, at) = metrics();
    let engine = Engine::start_with(
        &cell,
        SocketAddr::from(([127, 0, 0, 1], free_port())),
        &["--engines", "2", "--metrics", &at],
    );
    let len = |number: u64| match number % 50 {
        0 => 150_000,
        7 => 60_000,
        _ => 100,
    };
    std::thread::scope(|scope| {
        for own in 0..CLIENTS {
            let (cell, options) = (&cell, by_messages(&engine));
            scope.spawn(move || {
                let mut client = client(cell, options);
                let key = |number| format!("{own} {number}");
                for round in 1..4 {
                    let begin = Instant::now();
                    for number in 0..KEYS {
                        let text = value(&key(number), round, len(number));
                        let options = SetOptions::default();
                        client.submit_set(key(number).as_bytes(), &text, options, number);
                    }
                    let mut ended = 0;
                    while ended < KEYS {
                        client.poll(&mut |number, completion| {
                            ended += 1;
                            assert!(
                                matches!(
                                    completion,
                                    Completion::Mutated(Ok(Mutated::Stored { .. }))
                                ),
                                "{own} {number}: {completion:?}"
                            );
                        });
                        assert!(begin.elapsed() < PATIENCE);
                    }
                    for number in 0..KEYS {
                        let found = stored(&mut client, &key(number));
                        assert!(found == value(&key(number), round, len(number)));
                    }
                }
            });
        }
    });
    let said = said_by_metrics(port);
    let counted = |name| metric(&said, name, "0") + metric(&said, name, "1");
    assert!(counted("messages_total") >= 1000, "{said}");
    assert_eq!(counted("messages_lost_total"), 0, "{said}");
    assert_eq!(engine.stop()["malformed"], 0);
}

/// Nothing that was acknowledged is lost, and nothing fails, whoever ends.
#[test]
fn engines_and_backends_that_end_cost_no_mutation() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "64MiB", "--restart", "always"]);
    let mut engine = Engine::beside(&cell);
    under_load(&cell, by_messages(&engine), |goes_on| {
        for _ in 0..2 {
            engine.kill();
            goes_on(10);
            engine = Engine::start(&cell, engine.address);
            goes_on(10);
        }
        let restarted = cell.run(&["cell", "restart"]);
        assert!(restarted.status.success(), "{}", text(&restarted.stderr));
        goes_on(20);
        let status = cell.json(&["cell", "status", "--json"]);
        let pid = status["backends"][1]["pid"].as_u64().unwrap();
        kill(pid as u32, "KILL");
        goes_on(20);
    });
    // By calls: what is counted below was the load's, by the last engine.
    let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
    let mut client = connected.client(Options::default());
    mutate(&mut client, 3);
    drop(client);
    assert!(engine.stop()["messages"] > 0);
}

/// A stop is told to each of a process' threads, and takes effect when that runs next.
fn await_stopped(pid: u32) {
    let begin = Instant::now();
    let is_stopped = |task: &std::path::Path| {
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        matches!(state, Some('T' | 't'))
    };
    loop {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        if tasks.flatten().all(|task| is_stopped(&task.path())) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{pid} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A backend that hangs keeps those in its ring, and nobody else.
#[test]
fn a_backend_that_hangs_stops_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--memory", "64MiB", "--mode", "R=1", "--backends", "2"];
    let cell = Cell::up(dir.path(), &args);
    let (port, at) = metrics();
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let engine = Engine::start_with(&cell, listen, &["--metrics", &at]);
    let options = Options {
        deadline: Duration::from_secs(1),
        ..by_messages(&engine)
    };
    let mut client = client(&cell, options);
    let messages = |name| metric(&said_by_metrics(port), name, "0");
    for number in 0..40 {
        set(&mut client, &format!("k{number}"), b"before");
    }
    let hanging = Hanging::new(cell.pids[0]);
    await_stopped(cell.pids[0]);
    // About half of them are the other one's.
    let handed = messages("messages_total");
    let begin = Instant::now();
    for number in 0..40u64 {
        let key = format!("k{number}");
        client.submit_set(key.as_bytes(), b"while", SetOptions::default(), number);
    }
    let mut ended = HashMap::new();
    while ended.len() < 40 {
        client.poll(&mut |number, completion| {
            let is_stored = matches!(completion, Completion::Mutated(Ok(Mutated::Stored { .. })));
            ended.insert(number, is_stored);
        });
        assert!(begin.elapsed() < PATIENCE, "{ended:?}");
    }
    let stored = ended.values().filter(|is_stored| **is_stored).count();
    assert!((5..40).contains(&stored), "{stored} of 40");
    // Not by calls: the engine has gone on.
    assert!(messages("messages_total") >= handed + 40);
    // Its lease has ended, and the engine has said so before it gave up the memory, which takes
    // it ten times as long.
    loop {
        let said = said_by_metrics(port);
        if metric(&said, "messages_lost_total", "0") > 0 {
            assert_eq!(metric(&said, "backends_mapped", "0"), 2);
            break;
        }
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    for number in (0..40u64).filter(|number| ended[number]) {
        set(&mut client, &format!("k{number}"), b"again");
    }
    drop(hanging);
    await_engine(&mut client);
    let before = messages("messages_total");
    for number in 0..40 {
        let begin = Instant::now();
        let key = format!("k{number}");
        while !matches!(
            client.set(key.as_bytes(), b"after", SetOptions::default()),
            Ok(Mutated::Stored { .. })
        ) {
            assert!(begin.elapsed() < PATIENCE, "{key}");
        }
        assert_eq!(get(&mut client, &key).as_deref(), Some(&b"after"[..]));
    }
    assert!(messages("messages_total") > before);
}

/// A SET of a key by hand; what the engine or the backend says.
fn set_by_hand(session: &mut Session, id: u64, key: &[u8]) -> Result<Outcome, MessageStatus> {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap();
    let mutation = Mutation {
        action: Action::Set,
        version: Version::new(now.as_nanos() as u64, 7, id as u32),
        entry: DataEntry {
            key,
            value: b"by hand",
            ..DataEntry::default()
        },
    };
    let config_id = session.config_id;
    let head = RequestHead { id, config_id };
    let request = Request::Mutate(mutation);
    assert!(session.initiator.message(session.handle, head, &request, 0));
    session.await_event(|event| match event {
        Event::Messaged { result, .. } => result.map(|bytes| match parse_answer(bytes) {
            Ok((_, Answer::Ack(ack))) => ack.outcome,
            other => panic!("{other:?}"),
        }),
        other => panic!("{other:?}"),
    })
}

/// The engine looks at rights before it hands anything on, and a change is known in a moment.
#[test]
fn who_may_only_read_changes_nothing_by_message() {
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    let (port, at) = metrics();
    let of_server = certs.of_server();
    let more = ["--certs", &of_server, "--metrics", &at];
    let engine = Engine::start_with(&cell, certs.listen(), &more);
    let messages = |name| metric(&said_by_metrics(port), name, "0");
    let mut client = certs.client(&cell, by_messages(&engine));
    let begin = Instant::now();
    while messages("messages_total") == 0 {
        set(&mut client, "k", b"first");
        assert!(begin.elapsed() < PATIENCE, "nothing is handed on");
    }
    certs.list("client read\n");
    // Calls are this user's own here, so nothing fails: what the engine refuses goes that way.
    let begin = Instant::now();
    while messages("messages_refused_total") == 0 {
        set(&mut client, "k", b"second");
        assert!(begin.elapsed() < PATIENCE, "nothing is refused");
    }
    let handed = messages("messages_total");
    // The client calls for a while before it asks again: it has done so when more was refused.
    let refused = messages("messages_refused_total");
    let begin = Instant::now();
    while messages("messages_refused_total") == refused {
        set(&mut client, "k", b"third");
        assert_eq!(get(&mut client, "k").as_deref(), Some(&b"third"[..]));
        assert!(begin.elapsed() < PATIENCE, "it does not ask again");
    }
    assert_eq!(messages("messages_total"), handed);
    // The session has lasted.
    await_engine(&mut client);
    certs.list("client write\n");
    while messages("messages_total") == handed {
        set(&mut client, "k", b"fourth");
        assert!(begin.elapsed() < 2 * PATIENCE, "nothing is handed on");
    }
}

/// Who was given a token of the engine's own was to read.
#[test]
fn a_token_of_an_engine_alone_writes_only_if_it_is_listed() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_dir, cell) = up("R=1");
    let own = tempfile::tempdir().unwrap();
    let (shown, listed) = ("a".repeat(64), "b".repeat(64));
    let file = own.path().join("token");
    std::fs::write(&file, &shown).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    // The digest of 64 times b.
    let digest = digest_of(listed.as_bytes());
    let rights = own.path().join("token.rights");
    std::fs::write(&rights, format!("app write sha256:{digest}\n")).unwrap();
    let path = file.display().to_string();
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let engine = Engine::start_with(&cell, listen, &["--token-file", &path]);
    let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
    let life = connected.config().life;
    let mut session = Session::open_with(&engine, life, shown.as_bytes());
    let said = set_by_hand(&mut session, 5, b"k");
    assert_eq!(said, Err(MessageStatus::NotAllowed));
    let mut session = Session::open_with(&engine, life, listed.as_bytes());
    assert_eq!(set_by_hand(&mut session, 5, b"k"), Ok(Outcome::Applied));
    let mut client = connected.client(Options::default());
    assert_eq!(get(&mut client, "k").as_deref(), Some(&b"by hand"[..]));
    let counted = engine.stop();
    let counts = (counted["messages"], counted["messages_refused"]);
    assert_eq!(counts, (1, 1), "{counted:?}");
}

/// More at once than a session may have: all in one piece, so that no answer comes between.
#[test]
fn who_has_too_much_under_way_is_hung_up_on() {
    let (_dir, cell) = up("R=1");
    let engine = Engine::beside(&cell);
    let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
    let life = connected.config().life;
    let pings = |count: u64| {
        let mut session = Session::open(&engine, life);
        let mut bytes = Vec::new();
        for id in 0..count {
            let head = RequestHead { id, config_id: 0 };
            Message::encode((session.handle, 48), head, &Request::Ping, &mut bytes);
        }
        session.socket.write_all(&bytes).unwrap();
        let (mut said, mut piece) = (0, [0; 4096]);
        // A MESSAGED with a pong.
        let whole = count as usize * (8 + 24 + 16);
        while said < whole {
            match session.socket.read(&mut piece) {
                Ok(0) | Err(_) => return false,
                Ok(count) => said += count,
            }
        }
        true
    };
    assert!(pings(MESSAGE_COUNT_MAX as u64));
    assert!(!pings(MESSAGE_COUNT_MAX as u64 + 1));
    assert_eq!(engine.stop()["malformed"], 1);
}

/// As `sha256sum` has it.
fn digest_of(bytes: &[u8]) -> String {
    let own = tempfile::tempdir().unwrap();
    let file = own.path().join("summed");
    std::fs::write(&file, bytes).unwrap();
    let summed = std::process::Command::new("sha256sum").arg(&file).output();
    text(&summed.unwrap().stdout)[..64].to_owned()
}

/// What datagrams leave to the stream and messages, long ones too, are in one another's way
/// nowhere.
#[test]
fn messages_go_by_the_stream_beside_datagrams() {
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    let engine = Engine::start_with(&cell, certs.listen(), &["--certs", &certs.of_server()]);
    let options = Options {
        engine_datagrams: true,
        ..by_messages(&engine)
    };
    let mut client = certs.client(&cell, options);
    let keys: Vec<String> = (0..60).map(|number| format!("k{number}")).collect();
    let len = |number: usize| [10, 5_000, 60_000][number % 3];
    for round in 1..4 {
        let begin = Instant::now();
        for (number, key) in keys.iter().enumerate() {
            let text = value(key, round, len(number));
            client.submit_set(key.as_bytes(), &text, SetOptions::default(), number as u64);
            client.submit_get(key.as_bytes(), 1000 + number as u64);
        }
        let mut ended = 0;
        while ended < 2 * keys.len() {
            client.poll(&mut |_, completion| {
                ended += 1;
                let is_right = match &completion {
                    Completion::Mutated(mutated) => {
                        matches!(mutated, Ok(Mutated::Stored { .. }))
                    }
                    Completion::Lookup(found) => found.is_ok(),
                    _ => false,
                };
                assert!(is_right, "{completion:?}");
            });
            assert!(begin.elapsed() < PATIENCE);
        }
        for (number, key) in keys.iter().enumerate() {
            assert!(
                get(&mut client, key) == Some(value(key, round, len(number))),
                "{key}"
            );
        }
    }
    drop(client);
    let counted = engine.stop();
    assert!(counted["messages"] >= 60, "{counted:?}");
    assert!(counted["datagrams_in"] > 0, "{counted:?}");
}
