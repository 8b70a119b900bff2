//! Data entries between processes of different layouts: as fields, not as bytes that lie
//! in memory. Whoever answers knows what the asker can take, and sends it plain if that is
//! another layout; whoever asked puts it into its own before anything else looks at it.

use crate::v1;
use bytes::Bytes;
use trefoil_layout::data::{DataEntry, EXPIRY_MS_MAX, ITEM_FLAGS_ALLOWED};
use trefoil_layout::limits::{KEY_LEN_MAX, VALUE_LEN_LIMIT};
use trefoil_layout::{KeyHasher, Version};

/// What releases meant that did not say which layout they read: there was one only.
const LAYOUT_UNSAID: u32 = 3;
/// In the place of a data entry that is damaged: too short to be one of any layout.
const DAMAGED: &[u8] = &[0];

/// How data entries are told to somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryForm {
    /// As they lie in memory: both sides have one layout.
    AsTheyLie,
    /// As fields.
    Plain,
}

/// Two processes have different layouts, and one of them knows no plain entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "data entries are of layout {own} in one process and of layout {asked} in the other, and one of the two releases is too old to tell or take them in a form that both know: upgrade (or downgrade) by way of a release in between that can"
)]
pub struct OtherLayout {
    /// The layout of who asks.
    pub asked: u32,
    /// Of who is asked.
    pub own: u32,
}

/// How a process of layout `own` tells entries to one that names `asked`.
pub const fn entry_form(asked: u32, takes_plain: bool, own: u32) -> Result<EntryForm, OtherLayout> {
    let asked = if asked == 0 { LAYOUT_UNSAID } else { asked };
    match (asked == own, takes_plain) {
        (true, _) => Ok(EntryForm::AsTheyLie),
        (false, true) => Ok(EntryForm::Plain),
        (false, false) => Err(OtherLayout { asked, own }),
    }
}

/// Makes an answer to a lookup plain. What is damaged stays so.
pub fn make_answer_plain(response: &mut v1::LookupResponse, hasher: &KeyHasher) {
    if let Some(v1::lookup_response::Found::Present(present)) = &mut response.found {
        make_plain(
            &mut present.data,
            &mut present.plain,
            present.version,
            hasher,
        );
    }
}

/// Makes a copied item plain. A long one has no data, and is looked up.
pub fn make_item_plain(item: &mut v1::CopiedItem, hasher: &KeyHasher) {
    make_plain(&mut item.data, &mut item.plain, item.version, hasher);
}

/// Puts what came plain into the own layout; nothing changes if it did not.
pub fn settle_answer(response: &mut v1::LookupResponse, hasher: &KeyHasher) {
    if let Some(v1::lookup_response::Found::Present(present)) = &mut response.found {
        let plain = present.plain.take();
        settle(&mut present.data, plain, present.version, hasher);
    }
}

/// See [`settle_answer`].
pub fn settle_item(item: &mut v1::CopiedItem, hasher: &KeyHasher) {
    let plain = item.plain.take();
    settle(&mut item.data, plain, item.version, hasher);
}

fn make_plain(
    data: &mut Bytes,
    plain: &mut Option<v1::PlainEntry>,
    version: Option<v1::Version>,
    hasher: &KeyHasher,
) {
    let bytes = std::mem::take(data);
    if bytes.is_empty() {
        return;
    }
    *plain = version.and_then(|version| plain_of(&bytes, super::decode_version(version), hasher));
    if plain.is_none() {
        *data = Bytes::from_static(DAMAGED);
    }
}

/// `None` if it is damaged: fields have no checksum, so it is checked here.
fn plain_of(data: &[u8], version: Version, hasher: &KeyHasher) -> Option<v1::PlainEntry> {
    let key = DataEntry::decode(data)?.key;
    let entry = DataEntry::validate(data, hasher.hash(key).tag, version, key).ok()?;
    Some(v1::PlainEntry {
        key: Bytes::copy_from_slice(entry.key),
        value: Bytes::copy_from_slice(entry.value),
        expiry_ms: entry.expiry_ms,
        client_flags: entry.client_flags,
        item_flags: entry.item_flags.into(),
        unique: entry.unique,
    })
}

fn settle(
    data: &mut Bytes,
    plain: Option<v1::PlainEntry>,
    version: Option<v1::Version>,
    hasher: &KeyHasher,
) {
    let Some(plain) = plain else { return };
    let version = version.map(super::decode_version);
    let bytes = version.and_then(|version| entry_of(&plain, version, hasher));
    // What no layout of ours can hold is as good as damaged.
    *data = bytes.unwrap_or(Bytes::from_static(DAMAGED));
}

fn entry_of(plain: &v1::PlainEntry, version: Version, hasher: &KeyHasher) -> Option<Bytes> {
    let is_possible = (1..=KEY_LEN_MAX).contains(&plain.key.len())
        && plain.value.len() <= VALUE_LEN_LIMIT
        && plain.expiry_ms <= EXPIRY_MS_MAX;
    if !is_possible {
        return None;
    }
    let entry = DataEntry {
        expiry_ms: plain.expiry_ms,
        client_flags: plain.client_flags,
        item_flags: plain.item_flags as u8 & ITEM_FLAGS_ALLOWED,
        unique: plain.unique,
        key: &plain.key,
        value: &plain.value,
    };
    let mut bytes = vec![0; entry.encoded_len()];
    entry.encode(&mut bytes, hasher.hash(entry.key).tag, version);
    Some(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::lookup_response::Found;

    const VERSION: Version = Version::new(7, 8, 9);

    fn entry() -> DataEntry<'static> {
        DataEntry {
            expiry_ms: 1_900_000_000_000,
            client_flags: 0xdead_beef,
            item_flags: 2,
            unique: Some(77),
            key: b"key",
            value: b"a value",
        }
    }

    fn bytes() -> Vec<u8> {
        let mut bytes = vec![0; entry().encoded_len()];
        let tag = KeyHasher::default().hash(b"key").tag;
        entry().encode(&mut bytes, tag, VERSION);
        bytes
    }

    fn item(data: Vec<u8>) -> v1::CopiedItem {
        v1::CopiedItem {
            version: Some(super::super::encode_version(VERSION)),
            data: data.into(),
            ..v1::CopiedItem::default()
        }
    }

    #[test]
    fn what_is_made_plain_and_settled_is_the_same_entry() {
        let hasher = KeyHasher::default();
        let mut copied = item(bytes());
        make_item_plain(&mut copied, &hasher);
        let plain = copied.plain.clone().unwrap();
        assert!(copied.data.is_empty());
        assert_eq!(
            (&plain.value[..], plain.unique),
            (&b"a value"[..], Some(77))
        );
        settle_item(&mut copied, &hasher);
        assert_eq!(&copied.data[..], bytes());

        let present = v1::Present {
            version: copied.version,
            data: copied.data,
            plain: None,
        };
        let mut answer = v1::LookupResponse {
            found: Some(Found::Present(present)),
            ..v1::LookupResponse::default()
        };
        let before = answer.clone();
        make_answer_plain(&mut answer, &hasher);
        assert_ne!(answer, before);
        settle_answer(&mut answer, &hasher);
        assert_eq!(answer, before);
    }

    #[test]
    fn damage_and_nonsense_become_no_value() {
        let hasher = KeyHasher::default();
        let mut damaged = bytes();
        *damaged.last_mut().unwrap() ^= 1;
        let mut copied = item(damaged);
        make_item_plain(&mut copied, &hasher);
        assert_eq!((copied.plain.clone(), &copied.data[..]), (None, DAMAGED));
        settle_item(&mut copied, &hasher);
        assert_eq!(&copied.data[..], DAMAGED);
        for plain in [
            v1::PlainEntry::default(),
            v1::PlainEntry {
                key: vec![1; KEY_LEN_MAX + 1].into(),
                ..v1::PlainEntry::default()
            },
            v1::PlainEntry {
                key: vec![1].into(),
                expiry_ms: u64::MAX,
                ..v1::PlainEntry::default()
            },
        ] {
            let mut copied = item(Vec::new());
            copied.plain = Some(plain);
            settle_item(&mut copied, &hasher);
            assert_eq!(&copied.data[..], DAMAGED);
        }
    }

    #[test]
    fn a_long_item_has_nothing_to_be_made_plain() {
        let mut copied = item(Vec::new());
        let before = copied.clone();
        make_item_plain(&mut copied, &KeyHasher::default());
        settle_item(&mut copied, &KeyHasher::default());
        assert_eq!(copied, before);
    }

    #[test]
    fn nobody_guesses_a_layout() {
        for (asked, takes_plain, own, form) in [
            // Releases that say none read the third.
            (0, false, 3, Ok(EntryForm::AsTheyLie)),
            (3, false, 3, Ok(EntryForm::AsTheyLie)),
            (3, true, 3, Ok(EntryForm::AsTheyLie)),
            (3, true, 4, Ok(EntryForm::Plain)),
            (4, true, 3, Ok(EntryForm::Plain)),
            (0, false, 4, Err(OtherLayout { asked: 3, own: 4 })),
            (4, false, 3, Err(OtherLayout { asked: 4, own: 3 })),
        ] {
            assert_eq!(entry_form(asked, takes_plain, own), form);
        }
        let said = OtherLayout { asked: 3, own: 4 }.to_string();
        assert!(said.contains("by way of a release in between"), "{said}");
    }
}
