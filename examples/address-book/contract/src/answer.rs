//! Contacts encoded where the book is.
//!
//! A generated `LookupAnswer` owns its contacts, so a server that keeps books as
//! objects would clone every string only to encode it and drop it. This message
//! has the same bytes on the wire, made while the book is borrowed.

use crate::v1::{Contact, LookupAnswer};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

const VERSION_TAG: u32 = 1;
const CONTACTS_TAG: u32 = 2;
/// Most contacts take less than this on the wire: a first guess of the length.
const CONTACT_LEN_GUESS: usize = 128;

/// A `LookupAnswer`, already encoded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EncodedAnswer {
    fields: Bytes,
}

impl EncodedAnswer {
    /// The answer with these contacts of a book at `version`.
    pub fn new(version: u64, contacts: &[Contact]) -> Self {
        let mut fields = BytesMut::with_capacity(16 + contacts.len() * CONTACT_LEN_GUESS);
        if version != 0 {
            encoding::uint64::encode(VERSION_TAG, &version, &mut fields);
        }
        for contact in contacts {
            encoding::message::encode(CONTACTS_TAG, contact, &mut fields);
        }
        EncodedAnswer {
            fields: fields.freeze(),
        }
    }
}

impl From<LookupAnswer> for EncodedAnswer {
    fn from(answer: LookupAnswer) -> Self {
        EncodedAnswer::new(answer.version, &answer.contacts)
    }
}

impl Message for EncodedAnswer {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.fields);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        // Fields are checked one at a time and kept as they would be encoded.
        let mut fields = BytesMut::from(&self.fields[..]);
        match tag {
            VERSION_TAG => {
                let mut version = 0;
                encoding::uint64::merge(wire_type, &mut version, buf, context)?;
                encoding::uint64::encode(tag, &version, &mut fields);
            }
            CONTACTS_TAG => {
                let mut contact = Contact::default();
                encoding::message::merge(wire_type, &mut contact, buf, context)?;
                encoding::message::encode(tag, &contact, &mut fields);
            }
            _ => encoding::skip_field(wire_type, tag, buf, context)?,
        }
        self.fields = fields.freeze();
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        self.fields.len()
    }

    fn clear(&mut self) {
        self.fields.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_book;
    use proptest::prelude::*;

    #[test]
    fn it_reads_as_the_plain_message() {
        let book = sample_book(7, 10_000);
        let answer = EncodedAnswer::new(3, &book.contacts);
        let bytes = answer.encode_to_vec();
        let plain = LookupAnswer::decode(&bytes[..]).unwrap();
        assert_eq!((plain.version, &plain.contacts), (3, &book.contacts));
        assert_eq!(bytes, plain.encode_to_vec());
        assert_eq!(EncodedAnswer::decode(&bytes[..]).unwrap(), answer);
        assert_eq!(EncodedAnswer::from(plain), answer);
    }

    proptest! {
        #[test]
        fn what_the_plain_message_refuses_is_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..60)
        ) {
            let plain = LookupAnswer::decode(&bytes[..]);
            let encoded = EncodedAnswer::decode(&bytes[..]);
            prop_assert_eq!(plain.is_ok(), encoded.is_ok());
            if let (Ok(plain), Ok(encoded)) = (plain, encoded) {
                let back = LookupAnswer::decode(&encoded.encode_to_vec()[..]).unwrap();
                prop_assert_eq!(plain, back);
            }
        }
    }
}
