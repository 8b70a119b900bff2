//! AES-128-GCM with the keys of one TLS session.

use crate::channel::Channel;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use trefoil_softnic_core::datagram::{Cipher, Sealed};

const KEY_LEN: usize = 16;
const LABEL: &[u8] = b"EXPORTER-trefoil-engine-datagrams";
/// Bytes drawn: a key for each direction, and the session's name.
const DRAWN_LEN: usize = 2 * KEY_LEN + 8;

/// Which end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Engine,
}

/// What both ends draw from their TLS.
pub(crate) struct Keys {
    /// Names the session in datagrams.
    pub(crate) session: u64,
    from_client: [u8; KEY_LEN],
    from_engine: [u8; KEY_LEN],
}

impl Keys {
    /// `None` without TLS, or before its handshake has ended.
    pub(crate) fn draw(channel: &Channel) -> Option<Keys> {
        let drawn: [u8; DRAWN_LEN] = channel.export(LABEL)?;
        let (mut from_client, mut from_engine) = ([0; KEY_LEN], [0; KEY_LEN]);
        let mut session = [0; 8];
        from_client.copy_from_slice(&drawn[..KEY_LEN]);
        from_engine.copy_from_slice(&drawn[KEY_LEN..2 * KEY_LEN]);
        session.copy_from_slice(&drawn[2 * KEY_LEN..]);
        Some(Keys {
            session: u64::from_le_bytes(session),
            from_client,
            from_engine,
        })
    }

    /// One end. Once only: the numbers that are nonces begin anew with it.
    pub(crate) fn into_end(self, side: Side) -> Option<Sealed<Aes>> {
        let key = |bytes: &[u8]| {
            UnboundKey::new(&AES_128_GCM, bytes)
                .ok()
                .map(LessSafeKey::new)
        };
        let (from_client, from_engine) = (key(&self.from_client)?, key(&self.from_engine)?);
        let (seals, opens) = match side {
            Side::Client => (from_client, from_engine),
            Side::Engine => (from_engine, from_client),
        };
        Some(Sealed::new(self.session, Aes { seals, opens }))
    }
}

/// See the module.
pub(crate) struct Aes {
    seals: LessSafeKey,
    opens: LessSafeKey,
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Cipher for Aes {
    fn seal(&mut self, number: u64, head: &[u8], bytes: &mut Vec<u8>, from: usize) {
        let (nonce, head) = (nonce(number), Aad::from(head));
        let sealed = self
            .seals
            .seal_in_place_separate_tag(nonce, head, &mut bytes[from..]);
        match sealed {
            Ok(tag) => bytes.extend_from_slice(tag.as_ref()),
            // Only for what is longer than any datagram. Nothing goes out unsealed.
            Err(_) => bytes.clear(),
        }
    }

    fn open<'a>(&mut self, number: u64, head: &[u8], sealed: &'a mut [u8]) -> Option<&'a [u8]> {
        let opened = self
            .opens
            .open_in_place(nonce(number), Aad::from(head), sealed);
        opened.ok().map(|bytes| &*bytes)
    }
}
