//! Sessions by hand, past what a client checks.

use super::{Engine, PATIENCE, get, set, up};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;
use trefoil_client_core::vote::{IndexVote, index_vote};
use trefoil_layout::bucket::BUCKET_LEN;
use trefoil_layout::control::{self, CONTROL_LEN};
use trefoil_layout::data::DataEntry;
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_softnic_core::wire::Region;
use trefoil_softnic_core::{Event, Initiator, InitiatorOptions, ReadRange, Unanswered};

/// A backend's control region, all of it.
pub(super) const CONTROL: ReadRange = ReadRange {
    region: Region::Control,
    partition: 0,
    window_id: 0,
    offset: 0,
    len: CONTROL_LEN as u32,
};

/// The first bytes of a session, of any version and token.
pub(super) fn hello(version: u16, token: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 8 + 288];
    bytes[..4].copy_from_slice(&288u32.to_le_bytes());
    (bytes[4], bytes[6]) = (1, 1);
    bytes[8..16].copy_from_slice(b"TREFSNIC");
    bytes[16..18].copy_from_slice(&version.to_le_bytes());
    bytes[18] = LAYOUT_VERSION;
    bytes[20..22].copy_from_slice(&(token.len() as u16).to_le_bytes());
    bytes[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    bytes[40..40 + token.len()].copy_from_slice(token);
    bytes
}

/// What the engine says to these bytes before it hangs up.
pub(super) fn said_to(engine: &Engine, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(engine.address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // It may have hung up already.
    let _ = socket.write_all(bytes);
    let mut said = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match socket.read(&mut piece) {
            Ok(0) | Err(_) => return said,
            Ok(count) => said.extend_from_slice(&piece[..count]),
        }
    }
}

/// One session by hand.
pub(super) struct Session {
    pub(super) socket: TcpStream,
    pub(super) initiator: Initiator,
    pub(super) handle: u32,
    pub(super) config_id: u32,
    pub(super) sub_count: usize,
    pub(super) input: Vec<u8>,
}

impl Session {
    pub(super) fn open(engine: &Engine, life: u64) -> Session {
        Session::open_with(engine, life, token_of(engine).as_bytes())
    }

    pub(super) fn open_with(engine: &Engine, life: u64, token: &[u8]) -> Session {
        let options = InitiatorOptions {
            token,
            ..InitiatorOptions::default()
        };
        let mut session = Session {
            socket: TcpStream::connect(engine.address).unwrap(),
            initiator: Initiator::new(options),
            handle: 0,
            config_id: 0,
            sub_count: 0,
            input: Vec::new(),
        };
        session.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        session.initiator.open(1, 0, life, 0);
        let opened = session.await_event(|event| match event {
            Event::Opened { result, .. } => result.unwrap(),
            other => panic!("{other:?}"),
        });
        (session.handle, session.sub_count) = (opened.handle, opened.sub_count.into());
        session.config_id = opened.topology.config_id;
        session
    }

    pub(super) fn await_event<T>(&mut self, take: impl Fn(Event<'_>) -> T) -> T {
        loop {
            self.initiator.put_messages();
            self.initiator.flush(0);
            self.socket.write_all(self.initiator.output()).unwrap();
            self.initiator.sent(self.initiator.output().len());
            let mut found = None;
            let done = self
                .initiator
                .handle(&self.input, 0, |event| found = Some(take(event)));
            self.input.drain(..done.unwrap());
            if let Some(found) = found {
                return found;
            }
            let mut piece = [0; 4096];
            let count = self.socket.read(&mut piece).unwrap();
            assert!(count > 0, "the engine has hung up");
            self.input.extend_from_slice(&piece[..count]);
        }
    }

    /// The bytes, as words.
    pub(super) fn read(&mut self, range: ReadRange) -> Result<Vec<u64>, Unanswered> {
        assert!(self.initiator.read(2, self.handle, &range, 0));
        self.await_event(|event| match event {
            Event::Read { data, .. } => {
                let words = data.chunks_exact(8);
                Ok(words
                    .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
                    .collect())
            }
            Event::Unanswered { why, .. } => Err(why),
            other => panic!("{other:?}"),
        })
    }
}

pub(super) fn token_of(engine: &Engine) -> std::sync::Arc<str> {
    let server = trefoil_cell::RpcAddress::Tcp {
        host: engine.address.ip().to_string(),
        port: engine.address.port(),
    };
    trefoil_cell::credentials(&server)
        .token()
        .expect("it was left here")
}

/// What a client does that reads the memory itself: windows, bucket, data.
#[test]
fn an_item_is_found_by_reads_alone() {
    let (_dir, cell) = up("R=1");
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "by hand", b"found");
    let (hash, life) = (client.config().hash.hash(b"by hand"), client.config().life);
    let mut session = Session::open(&engine, life);
    let words = session.read(CONTROL).unwrap();
    let partition = hash.partition(0, session.sub_count);
    let window = control::index_window(&words[..], partition).unwrap();
    let home = hash.bucket(window.bucket_count);
    let bucket = ReadRange {
        region: Region::Index,
        partition: partition as u16,
        window_id: window.window_id,
        offset: window.offset + home * BUCKET_LEN as u64,
        len: 4 * BUCKET_LEN as u32,
    };
    let buckets = session.read(bucket).unwrap();
    let config_id = control::config_id(&words[..]);
    let vote = index_vote(hash, config_id, window.bucket_count, |number| {
        &buckets[(number - home) as usize * BUCKET_LEN / 8..][..BUCKET_LEN / 8]
    });
    let IndexVote::Present { entry, .. } = vote else {
        panic!("{vote:?}");
    };
    let data = ReadRange {
        region: Region::Data,
        partition: 0,
        window_id: 0,
        offset: entry.pointer.offset(),
        len: entry.pointer.len() as u32,
    };
    let data_words = session.read(data).unwrap();
    let bytes: Vec<u8> = data_words
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let found = DataEntry::validate(&bytes, hash.tag, entry.version, b"by hand").unwrap();
    assert_eq!(found.value, b"found");
    // Nothing but what is advertised.
    let data_window = control::data_window(&words[..]);
    let index_end = window.offset + control::IndexWindow::bytes(window.bucket_count);
    for beyond in [
        ReadRange {
            offset: CONTROL_LEN as u64 - 8,
            len: 16,
            ..CONTROL
        },
        ReadRange {
            offset: !7,
            ..CONTROL
        },
        ReadRange {
            window_id: window.window_id + 2,
            ..bucket
        },
        ReadRange {
            partition: u16::MAX,
            ..bucket
        },
        ReadRange {
            offset: bucket.offset + 8,
            ..bucket
        },
        ReadRange {
            offset: index_end - BUCKET_LEN as u64,
            ..bucket
        },
        ReadRange {
            offset: !7,
            ..bucket
        },
        ReadRange {
            offset: data_window - 8,
            len: 16,
            ..data
        },
        ReadRange { offset: !7, ..data },
    ] {
        assert_eq!(
            session.read(beyond),
            Err(Unanswered::OutOfWindow),
            "{beyond:?}"
        );
    }
    assert_eq!(
        session.read(CONTROL).map(|words| words.len()),
        Ok(CONTROL_LEN / 8)
    );
}

#[test]
fn a_window_that_was_taken_back_is_read_no_more() {
    let (_dir, cell) = up("R=1");
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "first", b"value");
    let (hash, life) = (client.config().hash.hash(b"first"), client.config().life);
    let mut session = Session::open(&engine, life);
    let partition = hash.partition(0, session.sub_count);
    let window = |session: &mut Session| {
        let words = session.read(CONTROL).unwrap();
        control::index_window(&words[..], partition)
    };
    let first = window(&mut session).unwrap();
    let bucket = ReadRange {
        region: Region::Index,
        partition: partition as u16,
        window_id: first.window_id,
        offset: first.offset,
        len: BUCKET_LEN as u32,
    };
    assert!(session.read(bucket).is_ok());
    // Its index grows, and the one before is taken back.
    let (begin, mut number) = (Instant::now(), 0);
    loop {
        for _ in 0..200 {
            number += 1;
            set(&mut client, &format!("more {number}"), b"v");
        }
        let now = window(&mut session);
        if now.is_some_and(|now| now.window_id != first.window_id) {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "after {number} items");
    }
    assert_eq!(session.read(bucket), Err(Unanswered::OutOfWindow));
    assert_eq!(get(&mut client, "first").as_deref(), Some(&b"value"[..]));
}

/// Nobody has read through the engine meanwhile, which would have made it look.
#[test]
fn who_opens_a_backend_is_told_of_the_configuration_that_it_serves_now() {
    let (_dir, cell) = up("R=1");
    let engine = Engine::beside(&cell);
    let client = engine.client(&cell);
    let life = client.config().life;
    let before = Session::open(&engine, life).config_id;
    cell.json(&["cell", "flush", "--json"]);
    assert_eq!(Session::open(&engine, life).config_id, before + 1);
}
