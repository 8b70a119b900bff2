//! What a fork's child does by its parent's client.

use crate::remote::Beside;
use crate::support::{Server, Wanted};
use rustix::process::Signal;
use std::io::{PipeReader, Read, Write};
use std::time::Duration;
use trefoil_ordered::{Carrier, NoAnswer, Options, Queue, Refused, Shared, Worker};
use trefoil_queue::{Client, ClientError, ServiceKind};

/// What a child ends with that has found what it should.
const RIGHT: i32 = 7;

/// Forks. The child waits for a word, and ends by whether it has found what it should.
fn fork(mut word: PipeReader, child: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child uses this thread's client alone, and ends by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: ends this process alone, if nobody ever says the word.
        unsafe { libc::alarm(120) };
        let is_right = word.read_exact(&mut [0]).is_ok() && child();
        // SAFETY: ends the process.
        unsafe { libc::_exit(if is_right { RIGHT } else { 1 }) };
    }
    assert!(pid > 0, "no process left");
    pid
}

fn ended_as(pid: libc::pid_t) -> Option<i32> {
    let mut status = 0;
    // SAFETY: waits for a child that was made above.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

/// Every way to use a client, in a process that has not opened it.
fn is_refused<C: Carrier>(client: &mut Client<C>) -> bool {
    let refused = ClientError::Refused(Refused::OtherProcess);
    let sent = trefoil_ordered::Committed {
        position: 1,
        sequence: 1,
    };
    let within = Duration::from_secs(1);
    let queue = client.queue();
    let nobody = Err(NoAnswer::OtherProcess);
    let is_nobody = queue.wait_for_room(within) == nobody
        && queue.answer(sent, &mut Vec::new(), within) == nobody;
    is_nobody
        && client.set(b"second", b"the child's") == Err(refused)
        && client.get(b"first") == Err(refused)
        && client.add(b"number", 1) == Err(refused)
}

/// Its parent's requests stand in the slots that the child would write: published, and not
/// executed.
#[test]
fn a_child_is_refused_and_its_parents_commits_are_executed() {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = Wanted::new(ServiceKind::Cache, false, folder.path());
    let server = Server::ready(&wanted);
    let mut client = Client::connect(&wanted.socket()).expect("a queue");
    let mut other = Client::connect(&wanted.socket()).expect("a queue");
    client.set(b"first", b"the parent's").expect("committed");
    assert_eq!(other.get(b"first"), Ok(Some(&b"the parent's"[..])));
    server.pause();
    let (word, mut go) = std::io::pipe().expect("a pipe");
    let pid = fork(word, || is_refused(&mut client));
    client.set(b"second", b"the parent's").expect("committed");
    client.set(b"third", b"the parent's").expect("committed");
    go.write_all(&[1]).expect("a child");
    let ended = ended_as(pid);
    server.signal(Signal::CONT);
    for key in [&b"second"[..], b"third"] {
        assert_eq!(other.get(key), Ok(Some(&b"the parent's"[..])));
    }
    assert_eq!(ended, Some(RIGHT));
    client.set(b"fourth", b"the parent's").expect("committed");
    assert_eq!(client.get(b"fourth"), Ok(Some(&b"the parent's"[..])));
    server.stop();
}

#[test]
fn a_child_opens_a_client_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = Wanted::new(ServiceKind::Cache, false, folder.path());
    let server = Server::ready(&wanted);
    let mut client = Client::connect(&wanted.socket()).expect("a queue");
    client.set(b"key", b"the parent's").expect("committed");
    let socket = wanted.socket();
    let (word, mut go) = std::io::pipe().expect("a pipe");
    let pid = fork(word, || {
        let Ok(mut own) = Client::connect(&socket) else {
            return false;
        };
        own.set(b"key", b"the child's") == Ok(()) && own.get(b"key") == Ok(Some(b"the child's"))
    });
    go.write_all(&[1]).expect("a child");
    assert_eq!(ended_as(pid), Some(RIGHT));
    assert_eq!(client.get(b"key"), Ok(Some(&b"the child's"[..])));
    server.stop();
}

/// A frame of the child's amid its parent's stream would end the connection.
#[test]
fn a_child_has_no_part_in_its_parents_connection_to_an_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = Wanted::new(ServiceKind::Cache, false, folder.path());
    let server = Server::ready(&wanted);
    let engine = Beside::start(&wanted.socket(), 0);
    let mut client = engine.connect();
    client.set(b"first", b"the parent's").expect("committed");
    let (word, mut go) = std::io::pipe().expect("a pipe");
    let pid = fork(word, || is_refused(&mut client));
    go.write_all(&[1]).expect("a child");
    assert_eq!(ended_as(pid), Some(RIGHT));
    client.set(b"third", b"the parent's").expect("committed");
    assert_eq!(client.get(b"second"), Ok(None));
    assert_eq!(client.get(b"third"), Ok(Some(&b"the parent's"[..])));
    assert_eq!(client.queue().reconnected(), 0);
    server.stop();
}

#[test]
fn a_child_has_no_part_in_a_shared_connection() {
    let mut worker = Worker::new(1, Options::default()).expect("memory");
    let queue = Queue::join(worker.admit().expect("memory")).expect("a lane");
    let mut shared = Shared::new(queue);
    let sent = shared.submit(b"the parent's", true).expect("room");
    let (word, mut go) = std::io::pipe().expect("a pipe");
    let pid = fork(word, || {
        shared.forget(sent);
        shared.submit(b"the child's", true) == Err(Refused::OtherProcess)
            && shared.committed(sent, Duration::ZERO) == Err(NoAnswer::OtherProcess)
    });
    go.write_all(&[1]).expect("a child");
    assert_eq!(ended_as(pid), Some(RIGHT));
    let next = shared.submit(b"the parent's", true).expect("room");
    assert_eq!(next.sequence, sent.sequence + 1);
}

/// A child holds its parent's descriptors as long as it lives.
#[test]
fn a_place_is_free_when_its_client_is_dropped_though_a_child_lives() {
    let mut worker = Worker::new(1, Options::default()).expect("memory");
    let queue = Queue::join(worker.admit().expect("memory")).expect("a lane");
    let (word, mut go) = std::io::pipe().expect("a pipe");
    let pid = fork(word, || true);
    assert_eq!(worker.client_count(), 1);
    drop(queue);
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while worker.client_count() > 0 && std::time::Instant::now() < end {
        worker.hear_of_the_dead();
        std::thread::sleep(Duration::from_millis(1));
    }
    let left = worker.client_count();
    go.write_all(&[1]).expect("a child");
    assert_eq!(ended_as(pid), Some(RIGHT));
    assert_eq!(left, 0);
}

/// What a child drops is its copy.
#[test]
fn a_place_is_kept_when_a_child_drops_its_copy() {
    let mut worker = Worker::new(1, Options::default()).expect("memory");
    let queue = Queue::join(worker.admit().expect("memory")).expect("a lane");
    let mut kept = Some(queue);
    let (word, mut go) = std::io::pipe().expect("a pipe");
    let pid = fork(word, || kept.take().is_some());
    go.write_all(&[1]).expect("a child");
    assert_eq!(ended_as(pid), Some(RIGHT));
    worker.hear_of_the_dead();
    assert_eq!(worker.client_count(), 1);
    assert!(!kept.expect("the parent's").is_server_gone());
}

#[test]
fn lanes_are_open_when_a_child_drops_its_copy_of_the_server() {
    let worker = Worker::new(1, Options::default()).expect("memory");
    let mut kept = Some(worker);
    let invited = kept.as_mut().expect("a worker").admit().expect("memory");
    let mut queue = Queue::join(invited).expect("a lane");
    let (word, mut go) = std::io::pipe().expect("a pipe");
    let pid = fork(word, || kept.take().is_some());
    go.write_all(&[1]).expect("a child");
    assert_eq!(ended_as(pid), Some(RIGHT));
    queue
        .submit(b"the parent's", true)
        .expect("its server lives");
    drop(kept);
    let refused = queue.submit(b"late", true);
    assert_eq!(refused, Err(Refused::Closed));
}
