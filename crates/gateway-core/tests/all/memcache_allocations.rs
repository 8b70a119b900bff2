//! Reads and writes allocate nothing once the buffers have their size.

use trefoil_gateway_core::keyspace::{
    Access, Decide, Decision, Halt, Item, Keyspace, ListedItem, NewItem, Seen, Totals, Updated,
};
use trefoil_gateway_core::memcache::MemcacheSession;
use trefoil_gateway_core::resp::RespSession;
use trefoil_gateway_core::session::Session;
use trefoil_gateway_core::world::{Done, Now, Observer, Progress, Settings, World};
use trefoil_layout::Version;

/// One item under every key, in buffers that stay.
struct OneItem {
    value: Vec<u8>,
    scratch: Vec<u8>,
    sequence: u64,
}

impl OneItem {
    fn item(&self) -> Item<'_> {
        Item {
            value: &self.value,
            version: Version::new(self.sequence, 1, 0),
            client_flags: 7,
            item_flags: 0,
            expiry_ms: 0,
            unique: None,
            seen: Seen {
                hit_before: true,
                idle_s: 0,
            },
        }
    }

    fn put(&mut self, value: &[u8]) -> Version {
        self.value.clear();
        self.value.extend_from_slice(value);
        self.sequence += 1;
        Version::new(self.sequence, 1, 0)
    }
}

impl Keyspace for OneItem {
    fn get(
        &mut self,
        _key: &[u8],
        _access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        with(Some(&self.item()));
        Ok(())
    }

    fn set(&mut self, _key: &[u8], item: &NewItem<'_>) -> Result<Version, Halt> {
        Ok(self.put(item.value))
    }

    fn update(&mut self, _key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let updated = match decide(Some(&self.item()), &mut scratch) {
            Decision::Keep => Updated::Kept,
            Decision::Store(item) => Updated::Stored(self.put(item.value)),
            Decision::Erase => Updated::Erased,
        };
        self.scratch = scratch;
        Ok(updated)
    }

    fn flush(&mut self, _at_ms: u64) -> Result<(), Halt> {
        Ok(())
    }

    fn list(
        &mut self,
        _cursor: u64,
        _count: usize,
        _each: &mut dyn FnMut(&ListedItem<'_>),
    ) -> Result<u64, Halt> {
        Ok(0)
    }

    fn totals(&mut self) -> Result<Totals, Halt> {
        Ok(Totals::default())
    }

    fn set_memory_limit(&mut self, _bytes: u64) -> Result<(), Halt> {
        Ok(())
    }

    fn value_len_max(&self) -> usize {
        1 << 20
    }
}

struct Nobody;

impl Observer for Nobody {
    fn done(&mut self, _done: &Done<'_>) {}
}

/// Executes requests twice: the first round brings the buffers to their size,
/// the second must not allocate.
fn allocates_nothing<S: Session>(mut session: S, requests: &[Vec<u8>]) {
    let settings = Settings {
        item_len_max: 1 << 20,
        shutdown_allowed: false,
        authentication: false,
        admin_commands: true,
        release: trefoil_gateway_core::world::Release::V1_6_18,
        connections_max: 1,
        idle_timeout: None,
        thread_count: 1,
        answer_len_max: 64 << 20,
        transactions: trefoil_gateway_core::world::Isolation::Relaxed,
    };
    let mut keyspace = OneItem {
        value: Vec::new(),
        scratch: Vec::new(),
        sequence: 0,
    };
    let mut out = Vec::new();
    for round in 0..2 {
        for request in requests {
            out.clear();
            let now = Now {
                unix_ms: 1_700_000_000_000,
                monotonic_ns: 0,
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
            let mut consumed = 0;
            let allocated = allocation_counter::measure(|| {
                consumed = session
                    .drive(request, &mut out, 1 << 20, &mut world)
                    .consumed;
            });
            let shown = request.escape_ascii();
            assert_eq!(consumed, request.len(), "{shown}");
            if round == 1 {
                assert_eq!(allocated.count_total, 0, "allocations of {shown}");
            }
        }
    }
}

const VALUE: &str = "12345678901234567890123456789012";

#[test]
fn text_and_meta_commands_allocate_nothing() {
    let value = VALUE;
    let many = format!("get{}\r\n", " some-key".repeat(100));
    let requests = [
        format!("set key 5 100 32\r\n{value}\r\n"),
        "get key\r\n".to_owned(),
        "gets key other-key\r\n".to_owned(),
        many,
        format!("cas key 5 100 32 1\r\n{value}\r\n"),
        format!("replace key 5 100 32 noreply\r\n{value}\r\n"),
        "touch key 100\r\n".to_owned(),
        "gat 100 key\r\n".to_owned(),
        "mg key v c t f s k Oopaque\r\n".to_owned(),
        "mg a2V5 b v k T100\r\n".to_owned(),
        format!("ms key 32 T100 F5 c\r\n{value}\r\n"),
        "set key 0 0 2\r\n10\r\n".to_owned(),
        "incr key 5\r\n".to_owned(),
        "ma key v\r\n".to_owned(),
    ];
    let requests = requests.map(String::into_bytes);
    allocates_nothing(MemcacheSession::new(), &requests);
}

#[test]
fn binary_commands_allocate_nothing() {
    let request = |opcode: u8, extras: &[u8], value: &[u8]| {
        let key = b"key";
        let body_len = (extras.len() + key.len() + value.len()) as u32;
        let mut bytes = vec![
            0x80,
            opcode,
            0,
            key.len() as u8,
            extras.len() as u8,
            0,
            0,
            0,
        ];
        bytes.extend(body_len.to_be_bytes());
        bytes.extend([0; 12]);
        for part in [extras, key, value] {
            bytes.extend_from_slice(part);
        }
        bytes
    };
    let (get, getkq, set, replace) = (0x00, 0x0d, 0x01, 0x03);
    let requests = [
        request(set, &[0; 8], VALUE.as_bytes()),
        request(get, b"", b""),
        request(getkq, b"", b"").repeat(100),
        request(replace, &[0; 8], VALUE.as_bytes()),
        request(0x1c, &[0; 4], b""),
        request(0x1d, &[0; 4], b""),
        request(set, &[0; 8], b"10"),
        request(0x05, &[0; 20], b""),
    ];
    allocates_nothing(MemcacheSession::new(), &requests);
}

#[test]
fn redis_commands_allocate_nothing() {
    let command = |words: &[&str]| {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        bytes.into_bytes()
    };
    let many: Vec<&str> = std::iter::once("MGET").chain(["key"; 100]).collect();
    let requests = [
        command(&["SET", "key", VALUE]),
        command(&["GET", "key"]),
        command(&many),
        command(&["SET", "key", VALUE, "PX", "100000"]),
        command(&["SET", "key", VALUE, "XX", "KEEPTTL"]),
        command(&["MSET", "key", VALUE, "other", VALUE]),
        command(&["EXISTS", "key", "key"]),
        command(&["EXPIRE", "key", "100"]),
        command(&["TTL", "key"]),
        command(&["GETEX", "key", "EX", "100"]),
        command(&["SET", "key", "10"]),
        command(&["INCRBY", "key", "5"]),
        command(&["PING"]),
    ];
    allocates_nothing(RespSession::new(), &requests);
}
