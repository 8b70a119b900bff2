//! Authentication by SASL PLAIN.

use super::BinarySession;
use super::frame::{AUTH_CONTINUE, Frame, Status, Verb, put_error, put_success, put_words};
use crate::keyspace::Keyspace;
use crate::world::{Introduction, World};

/// Longest message of a mechanism: two names and a password.
pub(super) const MESSAGE_LEN_MAX: usize = 4096;
/// Longest name of a mechanism, as memcached has it.
const MECHANISM_LEN_MAX: usize = 32;
const MECHANISM: &[u8] = b"PLAIN";

/// Lists the mechanisms. A server without authentication does not know the
/// command, which tells clients to go on without.
pub(super) fn mechanisms<K: Keyspace>(frame: &Frame<'_>, out: &mut Vec<u8>, world: &World<'_, K>) {
    if world.settings.authentication {
        put_success(out, &frame.header, 0, MECHANISM);
    } else {
        put_error(out, &frame.header, Status::UnknownCommand);
    }
}

/// A message over the limit; it is skipped.
pub(super) fn refuse_too_large<K: Keyspace>(
    frame: &Frame<'_>,
    out: &mut Vec<u8>,
    world: &World<'_, K>,
) {
    let status = if !world.settings.authentication {
        Status::UnknownCommand
    } else if frame.key.len() > MECHANISM_LEN_MAX {
        Status::InvalidArguments
    } else {
        Status::OutOfMemory
    };
    put_error(out, &frame.header, status);
}

/// Name and password of a PLAIN message (RFC 4616): an identity to act as,
/// which has to be the name itself or nothing, the name, the password, with
/// zero bytes between them.
fn name_and_password(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = message.split(|&byte| byte == 0);
    let (identity, name, password) = (parts.next()?, parts.next()?, parts.next()?);
    let whole = parts.next().is_none() && !name.is_empty();
    (whole && (identity.is_empty() || identity == name)).then_some((name, password))
}

impl BinarySession {
    /// Starts authentication, or goes on with it.
    pub(super) fn sasl<K: Keyspace>(
        &mut self,
        verb: Verb,
        frame: &Frame<'_>,
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) {
        let header = &frame.header;
        if !world.settings.authentication {
            return put_error(out, header, Status::UnknownCommand);
        }
        if frame.key.len() > MECHANISM_LEN_MAX {
            return put_error(out, header, Status::InvalidArguments);
        }
        let begun = match verb {
            Verb::SaslAuth => frame.key.eq_ignore_ascii_case(MECHANISM),
            _ => self.sasl_started,
        };
        if begun && verb == Verb::SaslAuth && frame.value.is_empty() {
            self.sasl_started = true;
            return put_words(out, header, AUTH_CONTINUE, b"");
        }
        self.sasl_started = false;
        let pair = begun.then(|| name_and_password(frame.value)).flatten();
        self.user = pair.and_then(|(name, password)| world.observer.authenticate(name, password));
        let said = match (self.user, pair) {
            (Some(_), Some((name, _))) => Introduction::of_user(name),
            // Nobody any more.
            _ => Introduction::default(),
        };
        world.observer.introduce(&said);
        if self.user.is_some() {
            put_success(out, header, 0, b"Authenticated");
        } else {
            put_error(out, header, Status::AuthError);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::name_and_password;

    #[test]
    fn plain_messages() {
        type Pair = (&'static [u8], &'static [u8]);
        let cases: [(&[u8], Option<Pair>); 8] = [
            (b"\0me\0secret", Some((b"me", b"secret"))),
            (b"me\0me\0secret", Some((b"me", b"secret"))),
            (b"you\0me\0secret", None),
            (b"\0me\0", Some((b"me", b""))),
            (b"\0\0secret", None),
            (b"me\0secret", None),
            (b"\0me\0secret\0", None),
            (b"", None),
        ];
        for (message, expected) in cases {
            assert_eq!(name_and_password(message), expected, "{message:?}");
        }
    }
}
