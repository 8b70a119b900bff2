//! Drives a session of the front door with any bytes, over a keyspace in
//! memory, and checks what holds for all of them.

use std::collections::HashMap;
use std::sync::Arc;
use trefoil_gateway_core::keyspace::Totals;
use trefoil_gateway_core::memory::MemoryKeyspace;
use trefoil_gateway_core::resp::{
    Function, Libraries, ScriptHash, ScriptJob, ScriptValue, Scripts,
};
use trefoil_gateway_core::session::{Session, Wants};
use trefoil_gateway_core::world::{Done, Now, Observer, Progress, Role, Settings, World};

const ITEM_LEN_MAX: usize = 2000;
const OUT_LEN_MAX: usize = 4096;
/// Room for a key and for lines beside a value.
const INPUT_LEN_MAX: usize = ITEM_LEN_MAX + 64 * 1024 + 20_000;
/// What one call may add to a full output: an item, or a report.
const ANSWER_LEN_MAX: usize = 512 * 1024;
const NOW_MS: u64 = 1_700_000_000_000;
const NOW: Now = Now {
    unix_ms: NOW_MS,
    monotonic_ns: 1,
};

/// Says nothing, and executes scripts: each line of a program is a command, whose words
/// are separated by blanks, where `K` stands for the first key. A line that begins with
/// `!` has the script fail, one that begins with `+` registers a function.
#[derive(Default)]
struct Nobody {
    kept: HashMap<ScriptHash, Arc<[u8]>>,
    libraries: Libraries,
    job: Option<Box<ScriptJob>>,
}

impl Nobody {
    /// Executes the script that waits.
    fn execute(&mut self) {
        let Some(job) = &mut self.job else {
            return;
        };
        job.begin_at(NOW);
        if job.execute_queued() {
            return;
        }
        job.is_compiled = true;
        let mut answer = ScriptValue::Nil;
        let program = job.program().to_vec();
        for line in program.split(|byte| *byte == b'\n') {
            match line {
                [b'!', words @ ..] => {
                    job.answer = Some(Err(words.to_vec()));
                    return;
                }
                [b'+', name @ ..] => {
                    // What is no name is no function.
                    let function = Function::new(name, None, &[]);
                    let _ = function.and_then(|function| job.register(function));
                }
                [] => {}
                line => {
                    let key = job.keys.first().cloned();
                    let word = |word: &[u8]| match (word, &key) {
                        (b"K", Some(key)) => key.clone(),
                        _ => word.to_vec(),
                    };
                    let words: Vec<_> = line.split(|byte| *byte == b' ').map(word).collect();
                    if words.iter().map(Vec::len).sum::<usize>() <= job.context.room() {
                        answer = job.context.call(&words);
                    }
                }
            }
        }
        job.answer = Some(Ok(answer));
    }
}

impl Scripts for Nobody {
    fn libraries(&mut self, act: &mut dyn FnMut(&mut Libraries)) {
        act(&mut self.libraries);
    }

    fn find(&mut self, hash: &ScriptHash) -> Option<Arc<[u8]>> {
        self.kept.get(hash).cloned()
    }

    fn keep(&mut self, hash: ScriptHash, source: Arc<[u8]>) {
        self.kept.insert(hash, source);
    }

    fn forget(&mut self) {
        self.kept.clear();
    }

    fn kill(&mut self) -> bool {
        false
    }

    fn begin(&mut self, job: Box<ScriptJob>) -> Result<(), Box<ScriptJob>> {
        self.job = Some(job);
        Ok(())
    }

    fn take(&mut self) -> Option<Box<ScriptJob>> {
        self.job.take()
    }
}

impl Observer for Nobody {
    fn scripts(&mut self) -> Option<&mut dyn Scripts> {
        Some(self)
    }

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
        release: trefoil_gateway_core::world::Release::V1_6_18,
        connections_max: 10,
        idle_timeout: None,
        thread_count: 1,
        answer_len_max: ANSWER_LEN_MAX,
        transactions: trefoil_gateway_core::world::Isolation::Relaxed,
    };
    let mut keyspace = MemoryKeyspace::new(NOW_MS);
    keyspace.value_len_max = Some(ITEM_LEN_MAX);
    let mut observer = Nobody::default();
    let mut pending = Vec::new();
    for chunk in chunks {
        pending.extend_from_slice(chunk);
        loop {
            let mut out = Vec::new();
            let now = NOW;
            let mut world = World {
                keyspace: &mut keyspace,
                observer: &mut observer,
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
                Wants::Operation => {
                    assert!(
                        observer.job.is_some(),
                        "a keyspace in memory is always ready"
                    );
                    observer.execute();
                }
                Wants::Events => break,
                Wants::Close => return,
            }
        }
    }
}
