//! Drives a session of the front door with any bytes, over a keyspace in
//! memory, and checks what holds for all of them.

use trefoil_gateway_core::keyspace::Totals;
use trefoil_gateway_core::memory::MemoryKeyspace;
use trefoil_gateway_core::session::{Session, Wants};
use trefoil_gateway_core::world::{
    Done, Now, Observer, Progress, Role, Settings, World,
};

const ITEM_LEN_MAX: usize = 2000;
const OUT_LEN_MAX: usize = 4096;
/// Room for a key and for lines beside a value.
const INPUT_LEN_MAX: usize = ITEM_LEN_MAX + 64 * 1024 + 20_000;
/// What one call may add to a full output: an item, or a report.
const ANSWER_LEN_MAX: usize = 512 * 1024;
const NOW_MS: u64 = 1_700_000_000_000;

struct Nobody;

impl Observer for Nobody {
    fn done(&mut self, done: &Done<'_>) {
        assert!(done.key.len() <= 64 * 1024);
    }

    fn stats(&mut self, group: &str, _: &Totals, each: &mut dyn FnMut(&str, &str)) -> bool {
        each("name", "value");
        group.is_empty()
    }

    fn authenticate(&mut self, name: &[u8], password: &[u8]) -> Option<Role> {
        (name == password).then_some(Role::Write)
    }
}

/// Feeds the chunks one after the other, as a connection would.
pub fn drive<S: Session>(mut session: S, authentication: bool, chunks: &[Vec<u8>]) {
    let settings = Settings {
        item_len_max: ITEM_LEN_MAX,
        shutdown_allowed: false,
        authentication,
        admin_commands: true,
        version: "1",
        connections_max: 10,
        idle_timeout: None,
        thread_count: 1,
        answer_len_max: ANSWER_LEN_MAX,
        transactions: trefoil_gateway_core::world::Isolation::Relaxed,
    };
    let mut keyspace = MemoryKeyspace::new(NOW_MS);
    keyspace.value_len_max = Some(ITEM_LEN_MAX);
    let mut pending = Vec::new();
    for chunk in chunks {
        pending.extend_from_slice(chunk);
        loop {
            let mut out = Vec::new();
            let now = Now {
                unix_ms: NOW_MS,
                monotonic_ns: 1,
            };
            let mut world = World {
                keyspace: &mut keyspace,
                observer: &mut Nobody,
                settings: &settings,
                now,
                next_now: now,
                progress: Progress::Begun,
                connection: 1,
            };
            let driven = session.drive(&pending, &mut out, OUT_LEN_MAX, &mut world);
            assert!(driven.consumed <= pending.len());
            assert!(out.len() <= OUT_LEN_MAX + ANSWER_LEN_MAX);
            pending.drain(..driven.consumed);
            match driven.wants {
                Wants::Input(len) => {
                    assert!(len <= INPUT_LEN_MAX, "wants {len} bytes");
                    // What it leaves, it could not use yet.
                    assert!(pending.len() <= INPUT_LEN_MAX);
                    break;
                }
                Wants::Output => assert!(!out.is_empty() || driven.consumed > 0),
                Wants::Turn => {}
                Wants::Operation => panic!("a keyspace in memory is always ready"),
                Wants::Events => break,
                Wants::Close => return,
            }
        }
    }
}
