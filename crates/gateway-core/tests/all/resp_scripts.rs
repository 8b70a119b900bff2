//! Scripts and long transactions, which are executed elsewhere: when their time begins, and
//! what becomes of answers that are too long.

use crate::rig::Rig;
use std::collections::HashMap;
use std::sync::Arc;
use trefoil_gateway_core::keyspace::{Access, Keyspace as _};
use trefoil_gateway_core::memory::MemoryKeyspace;
use trefoil_gateway_core::resp::{
    Function, JobKind, Libraries, RespSession, ScriptHash, ScriptJob, ScriptValue, Scripts,
};
use trefoil_gateway_core::session::{Session as _, Wants};
use trefoil_gateway_core::world::{Done, Now, Observer, Progress, World};

const NOW_MS: u64 = 1_700_000_000_000;

/// Keeps what is to be executed until it is asked for.
#[derive(Default)]
struct Desk {
    kept: HashMap<ScriptHash, Arc<[u8]>>,
    libraries: Libraries,
    job: Option<Box<ScriptJob>>,
}

impl Observer for Desk {
    fn done(&mut self, _done: &Done<'_>) {}

    fn scripts(&mut self) -> Option<&mut dyn Scripts> {
        Some(self)
    }
}

impl Scripts for Desk {
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
        self.job.is_some()
    }

    fn begin(&mut self, job: Box<ScriptJob>) -> Result<(), Box<ScriptJob>> {
        self.job = Some(job);
        Ok(())
    }

    fn take(&mut self) -> Option<Box<ScriptJob>> {
        self.job.take()
    }
}

fn now(unix_ms: u64) -> Now {
    Now {
        unix_ms,
        monotonic_ns: unix_ms * 1_000_000,
    }
}

fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes += &format!("${}\r\n{word}\r\n", word.len());
    }
    bytes.into_bytes()
}

/// What is answered to these commands, whose scripts are executed by `execute`; longest
/// answers are of `answer_len_max`. Answers, and what the session kept at most.
fn answers(
    desk: &mut Desk,
    keyspace: &mut MemoryKeyspace,
    answer_len_max: usize,
    commands: &[&[&str]],
    execute: &mut dyn FnMut(&mut ScriptJob),
) -> (String, usize) {
    let mut settings = Rig::new(RespSession::new()).settings;
    settings.answer_len_max = answer_len_max;
    let mut session = RespSession::new();
    let mut input: Vec<u8> = commands.iter().flat_map(|words| command(words)).collect();
    let (mut out, mut kept) = (Vec::new(), 0);
    loop {
        let mut world = World {
            keyspace: &mut *keyspace,
            observer: &mut *desk,
            settings: &settings,
            now: now(NOW_MS),
            next_now: now(NOW_MS),
            progress: Progress::Begun,
            connection: 7,
        };
        let out_len_max = out.len() + (1 << 20);
        let driven = session.drive(&input, &mut out, out_len_max, &mut world);
        input.drain(..driven.consumed);
        kept = kept.max(session.kept());
        match driven.wants {
            Wants::Operation => execute(desk.job.as_mut().expect("a script")),
            Wants::Output | Wants::Turn => {}
            wants => {
                assert_eq!((wants, input.len()), (Wants::Input(0), 0));
                return (String::from_utf8(out).unwrap(), kept);
            }
        }
    }
}

fn expiry(keyspace: &mut MemoryKeyspace, key: &str) -> Option<u64> {
    let mut expiry_ms = None;
    keyspace
        .get(key.as_bytes(), Access::Peek, &mut |item| {
            expiry_ms = item.map(|item| item.expiry_ms);
        })
        .unwrap();
    expiry_ms
}

/// A lock that a script takes lives as long as the script says, however long it waited
/// for a thread.
#[test]
fn the_time_of_a_script_begins_with_it() {
    let mut keyspace = MemoryKeyspace::new(NOW_MS);
    let words = ["SET", "lock", "me", "NX", "PX", "1000"].map(|word| word.as_bytes().to_vec());
    let mut execute = |job: &mut ScriptJob| {
        job.begin_at(now(NOW_MS + 5000));
        job.is_compiled = true;
        job.answer = Some(Ok(job.context.call(&words)));
    };
    let eval: &[&str] = &["EVAL", "take it", "1", "lock"];
    let mut desk = Desk::default();
    let (answer, _) = answers(&mut desk, &mut keyspace, 1 << 20, &[eval], &mut execute);
    assert_eq!(answer, "+OK\r\n");
    assert_eq!(expiry(&mut keyspace, "lock"), Some(NOW_MS + 6000));
    // So it is for a transaction that is executed like one.
    let long = "x".repeat(200 << 10);
    let commands: [&[&str]; 4] = [
        &["MULTI"],
        &["SET", "long", &long],
        &["PEXPIRE", "long", "1000"],
        &["EXEC"],
    ];
    let mut execute = |job: &mut ScriptJob| {
        job.begin_at(now(NOW_MS + 5000));
        assert!(job.execute_queued());
    };
    let (answer, _) = answers(&mut desk, &mut keyspace, 1 << 20, &commands, &mut execute);
    assert!(answer.ends_with("*2\r\n+OK\r\n:1\r\n"), "{answer}");
    assert_eq!(expiry(&mut keyspace, "long"), Some(NOW_MS + 6000));
}

/// An answer that the connection could not keep is refused before anything is stored, and
/// one that it can keep counts.
#[test]
fn answers_are_bounded_before_anything_is_stored() {
    let mut keyspace = MemoryKeyspace::new(NOW_MS);
    let set = ["SET", "k", "v"].map(|word| word.as_bytes().to_vec());
    let mut execute = |job: &mut ScriptJob| {
        job.is_compiled = true;
        job.context.call(&set);
        job.answer = Some(Ok(ScriptValue::Bulk(vec![b'a'; 2000])));
    };
    let mut desk = Desk::default();
    let eval: &[&str] = &["EVAL", "much", "1", "k"];
    let (answer, _) = answers(&mut desk, &mut keyspace, 1000, &[eval], &mut execute);
    assert!(
        answer.starts_with("-ERR the script's answer is longer than 1000"),
        "{answer}"
    );
    assert_eq!(expiry(&mut keyspace, "k"), None);
    let (answer, _) = answers(&mut desk, &mut keyspace, 10_000, &[eval], &mut execute);
    assert!(answer.starts_with("$2000\r\n"));
    assert_eq!(expiry(&mut keyspace, "k"), Some(0));
    // A transaction, on the loop and elsewhere.
    for value_len in [600, 200 << 10] {
        let value = "x".repeat(value_len);
        let commands: [&[&str]; 5] = [
            &["MULTI"],
            &["SET", "t", &value],
            &["GET", "t"],
            &["GET", "t"],
            &["EXEC"],
        ];
        let mut execute = |job: &mut ScriptJob| assert!(job.execute_queued());
        let most = 2 * value_len;
        let (answer, _) = answers(&mut desk, &mut keyspace, most, &commands, &mut execute);
        let last = answer.split("QUEUED\r\n").last().unwrap();
        assert!(
            last.starts_with("-EXECABORT Transaction refused"),
            "{last:.80}"
        );
        assert_eq!(expiry(&mut keyspace, "t"), None);
        let most = 3 * value_len;
        let (answer, kept) = answers(&mut desk, &mut keyspace, most, &commands, &mut execute);
        assert!(answer.ends_with(&format!("{value}\r\n")));
        assert_eq!(expiry(&mut keyspace, "t"), Some(0));
        // What it is about, what was read, and its answers.
        assert!(value_len == 600 || kept >= 2 * value_len, "{kept}");
        let deleted: &[&str] = &["DEL", "t"];
        answers(&mut desk, &mut keyspace, most, &[deleted], &mut |_| {});
    }
}

/// So are lists of libraries, by what they show.
#[test]
fn lists_of_libraries_are_bounded() {
    let mut keyspace = MemoryKeyspace::new(NOW_MS);
    let mut desk = Desk::default();
    let source = format!("#!lua name=a\n{}", "x".repeat(3000));
    let load: &[&str] = &["FUNCTION", "LOAD", "REPLACE", &source];
    let plain: &[&str] = &["FUNCTION", "LIST"];
    let with_code: &[&str] = &["FUNCTION", "LIST", "WITHCODE"];
    for (described, answer_len_max, are_listed) in [
        (2000, 1000, [false, false]),
        (500, 1000, [true, false]),
        (2000, 10_000, [true, true]),
    ] {
        let mut register = |job: &mut ScriptJob| {
            let function = Function::new(b"f", Some(vec![b'd'; described]), &[]).unwrap();
            job.register(function).unwrap();
            job.is_compiled = true;
            job.answer = Some(Ok(ScriptValue::Bulk(b"a".to_vec())));
        };
        let mut ask = |words| {
            let most = answer_len_max;
            answers(&mut desk, &mut keyspace, most, &[words], &mut register).0
        };
        assert_eq!(ask(load), "$1\r\na\r\n");
        for (words, is_listed) in [plain, with_code].into_iter().zip(are_listed) {
            let answer = ask(words);
            let begin = if is_listed {
                "*1\r\n"
            } else {
                "-ERR the answer is longer"
            };
            assert!(answer.starts_with(begin), "{answer:.80}");
            assert!(answer.len() <= answer_len_max);
        }
    }
}

/// A script is kept once it has been found to be one.
#[test]
fn what_does_not_compile_is_not_kept() {
    let mut keyspace = MemoryKeyspace::new(NOW_MS);
    let mut desk = Desk::default();
    let load: &[&str] = &["SCRIPT", "LOAD", "return {"];
    let eval: &[&str] = &["EVAL", "return {", "0"];
    let mut fail = |job: &mut ScriptJob| job.answer = Some(Err(b"ERR Error compiling".to_vec()));
    for words in [load, eval] {
        let (answer, _) = answers(&mut desk, &mut keyspace, 1000, &[words], &mut fail);
        assert_eq!(answer, "-ERR Error compiling\r\n");
        assert!(desk.kept.is_empty());
    }
    let mut compile = |job: &mut ScriptJob| {
        assert_eq!(job.kind, JobKind::Load);
        job.is_compiled = true;
        job.answer = Some(Ok(ScriptValue::Bulk(job.hash.clone().into_bytes())));
    };
    let loads = [load, load];
    let (answer, _) = answers(&mut desk, &mut keyspace, 1000, &loads, &mut compile);
    assert_eq!(answer.matches("$40\r\n").count(), 2);
    assert_eq!(desk.kept.len(), 1);
}
