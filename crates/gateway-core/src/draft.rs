//! One item as a keyspace: what several commands of one key make of it, before any
//! of that is stored.
//!
//! A transaction or a script that touches one key is one [`Keyspace::update`]: the
//! item is read, the commands are executed over a draft of it, and what they leave
//! is stored iff the item has not changed. Nobody sees a part of it, whatever number
//! of copies there are.

use crate::deferred::OwnedItem;
use crate::keyspace::{
    Access, Decide, Decision, Fault, Halt, Item, Keyspace, ListedItem, NewItem, Totals, Updated,
    cas_unique_of,
};
use crate::world::{Command, Done, Ending, Observer};
use trefoil_layout::Version;

/// What an operation on a draft counts as, beside the bytes that it reads and stores.
const OPERATION_WORK: u64 = 128;

/// An item that a draft has, in its own memory.
#[derive(Clone, Debug)]
struct Drafted {
    own: OwnedItem,
    /// The draft has made it: its version is nobody's.
    is_new: bool,
}

impl Drafted {
    fn item(&self) -> Item<'_> {
        self.own.item()
    }
}

/// See the module.
#[derive(Debug)]
pub struct DraftKeyspace {
    key: Vec<u8>,
    item: Option<Drafted>,
    has_changed: bool,
    is_used: bool,
    changes: u64,
    now_ms: u64,
    value_len_max: usize,
    scratch: Vec<u8>,
    work: u64,
}

impl DraftKeyspace {
    /// A draft of what is under `key` at `now_ms`, milliseconds since the Unix epoch.
    pub fn new(key: &[u8], item: Option<&Item<'_>>, now_ms: u64, value_len_max: usize) -> Self {
        let item = item.map(|item| Drafted {
            own: OwnedItem::of(item),
            is_new: false,
        });
        DraftKeyspace {
            key: key.to_vec(),
            item,
            has_changed: false,
            is_used: false,
            changes: 0,
            now_ms,
            value_len_max,
            scratch: Vec::new(),
            work: 0,
        }
    }

    /// What is done from now on is done at this time.
    pub fn set_now(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Whether anything was changed.
    pub fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Whether the item was read, so that it counts as used even if nothing was
    /// changed.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// What is left to be stored, if anything: after a change.
    pub fn left(&self) -> Option<NewItem<'_>> {
        let live = self.item.as_ref().filter(|item| !self.is_over(item));
        live.map(|item| item.own.as_new())
    }

    /// What the whole draft comes to; `scratch` holds the value.
    pub fn decision<'s>(&self, scratch: &'s mut Vec<u8>) -> Decision<'s> {
        if !self.has_changed {
            return Decision::Keep;
        }
        match self.left() {
            None => Decision::Erase,
            Some(left) => {
                scratch.clear();
                scratch.extend_from_slice(left.value);
                Decision::Store(NewItem {
                    value: scratch,
                    ..left
                })
            }
        }
    }

    fn is_over(&self, item: &Drafted) -> bool {
        let expiry_ms = item.item().expiry_ms;
        expiry_ms != 0 && expiry_ms <= self.now_ms
    }

    /// The item, if this is its key.
    fn live(&self, key: &[u8]) -> Result<Option<&Drafted>, Fault> {
        if key != self.key {
            return Err(Fault::Unsupported("another key"));
        }
        Ok(self.item.as_ref().filter(|item| !self.is_over(item)))
    }

    fn put(&mut self, new: &NewItem<'_>) -> Version {
        // A command that keeps the CAS unique of an item which exists only here names
        // one that nobody has seen; what is stored gets its own.
        let own = self.item.as_ref().filter(|item| item.is_new);
        let own_unique = own.map(|item| cas_unique_of(item.item().version));
        self.changes += 1;
        self.work += new.value.len() as u64;
        let version = Version::new(self.changes, 0, 0);
        let new = NewItem {
            unique: new.unique.filter(|unique| Some(*unique) != own_unique),
            ..*new
        };
        self.item = Some(Drafted {
            own: OwnedItem::stored(&new, version),
            is_new: true,
        });
        self.has_changed = true;
        version
    }
}

impl Keyspace for DraftKeyspace {
    fn get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        let item = self.live(key)?.map(Drafted::item);
        let len = item.as_ref().map_or(0, |item| item.value.len() as u64);
        let is_used = item.is_some() && access == Access::Use;
        with(item.as_ref());
        self.is_used |= is_used;
        self.work += OPERATION_WORK + len;
        Ok(())
    }

    fn set(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<Version, Halt> {
        self.live(key)?;
        self.work += OPERATION_WORK;
        Ok(self.put(item))
    }

    fn update(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let item = self.live(key)?.map(Drafted::item);
        let was_there = item.is_some();
        let len = item.as_ref().map_or(0, |item| item.value.len() as u64);
        let updated = match decide(item.as_ref(), &mut scratch) {
            Decision::Keep => Updated::Kept,
            Decision::Store(new) => Updated::Stored(self.put(&new)),
            Decision::Erase => {
                self.item = None;
                self.has_changed |= was_there;
                Updated::Erased
            }
        };
        self.work += OPERATION_WORK + len;
        self.scratch = scratch;
        Ok(updated)
    }

    fn flush(&mut self, _at_ms: u64) -> Result<(), Halt> {
        Err(Fault::Unsupported("a flush").into())
    }

    fn list(
        &mut self,
        _cursor: u64,
        _count: usize,
        _each: &mut dyn FnMut(&ListedItem<'_>),
    ) -> Result<u64, Halt> {
        Err(Fault::Unsupported("a listing").into())
    }

    fn totals(&mut self) -> Result<Totals, Halt> {
        Err(Fault::Unsupported("a report").into())
    }

    fn set_memory_limit(&mut self, _bytes: u64) -> Result<(), Halt> {
        Err(Fault::Unsupported("a memory limit").into())
    }

    fn value_len_max(&self) -> usize {
        self.value_len_max
    }

    fn work(&self) -> u64 {
        self.work
    }
}

/// What commands over a draft did, to be told once the draft is stored.
#[derive(Debug, Default)]
pub struct DraftNotes(Vec<Note>);

#[derive(Debug)]
struct Note {
    command: Command,
    ending: Ending,
    /// It is about the draft's key, and not about none.
    has_key: bool,
    value_len: usize,
}

impl DraftNotes {
    /// Tells it of the draft's key, and forgets it.
    pub fn tell(&mut self, key: &[u8], observer: &mut dyn Observer) {
        for note in self.0.drain(..) {
            observer.done(&Done {
                command: note.command,
                ending: note.ending,
                key: if note.has_key { key } else { b"" },
                value_len: note.value_len,
            });
        }
    }

    /// Bytes that it keeps.
    pub fn kept(&self) -> usize {
        self.0.capacity() * size_of::<Note>()
    }

    /// Forgets it: the draft begins anew.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl Observer for DraftNotes {
    fn done(&mut self, done: &Done<'_>) {
        self.0.push(Note {
            command: done.command,
            ending: done.ending,
            has_key: !done.key.is_empty(),
            value_len: done.value_len,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(value: &[u8]) -> NewItem<'_> {
        NewItem {
            value,
            ..NewItem::default()
        }
    }

    #[test]
    fn nothing_changed_is_nothing_to_store() {
        let mut draft = DraftKeyspace::new(b"k", None, 5, 100);
        let mut found = true;
        draft
            .get(b"k", Access::Use, &mut |item| found = item.is_some())
            .unwrap();
        assert!(!found);
        draft
            .update(b"k", &mut |_, _| Decision::Erase)
            .expect("nothing is there");
        assert!(matches!(draft.decision(&mut Vec::new()), Decision::Keep));
    }

    #[test]
    fn what_is_left_is_stored_under_a_unique_of_its_own() {
        let mut draft = DraftKeyspace::new(b"k", None, 5, 100);
        draft.set(b"k", &item(b"one")).unwrap();
        // A new expiry keeps the unique; this item has none yet.
        draft
            .update(b"k", &mut |item, scratch| {
                let item = item.expect("just set");
                item.value.append_to(scratch);
                Decision::Store(NewItem {
                    value: scratch,
                    expiry_ms: 50,
                    unique: Some(item.cas_unique()),
                    ..NewItem::default()
                })
            })
            .unwrap();
        let left = draft.left().unwrap();
        assert_eq!(
            (left.value, left.expiry_ms, left.unique),
            (b"one".as_slice(), 50, None)
        );
    }

    #[test]
    fn what_has_expired_meanwhile_is_gone() {
        let mut draft = DraftKeyspace::new(b"k", None, 5, 100);
        let over = NewItem {
            expiry_ms: 1,
            ..item(b"x")
        };
        draft.set(b"k", &over).unwrap();
        assert!(draft.has_changed() && draft.left().is_none());
        let other = draft.set(b"other", &item(b"x"));
        assert!(matches!(other, Err(Halt::Fault(Fault::Unsupported(_)))));
    }
}
