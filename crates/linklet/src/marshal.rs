//! How values leave the process: the one thing that an application has to
//! say about its objects. Used only when a value moves to another server or
//! is copied to a replica, never when a request is answered.
//!
//! A marshaller is code of the application and may be wrong. A failure is an
//! answer; a panic is caught here and becomes one, so that one bad value never
//! stops the others from moving.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Turns values into bytes and back.
///
/// ```
/// # use trefoil_linklet::{Marshal, MarshalError};
/// struct Session { user: u64 }
/// struct Sessions;
/// impl Marshal<Session> for Sessions {
///     fn marshal(&self, _key: &[u8], value: &Session, out: &mut Vec<u8>) -> Result<(), MarshalError> {
///         out.extend_from_slice(&value.user.to_le_bytes());
///         Ok(())
///     }
///     fn unmarshal(&self, _key: &[u8], bytes: &[u8]) -> Result<Session, MarshalError> {
///         let user = bytes.try_into().map_err(|_| MarshalError::new("a session has 8 bytes"))?;
///         Ok(Session { user: u64::from_le_bytes(user) })
///     }
/// }
/// ```
pub trait Marshal<V>: Send + Sync + 'static {
    /// Appends the value's bytes to `out`. What it has appended when it fails
    /// is thrown away.
    fn marshal(&self, key: &[u8], value: &V, out: &mut Vec<u8>) -> Result<(), MarshalError>;

    /// Makes a value of what `marshal` wrote, perhaps in another process and
    /// by another release of the application.
    fn unmarshal(&self, key: &[u8], bytes: &[u8]) -> Result<V, MarshalError>;

    /// Resident bytes of a value, which the memory bound counts. Asked at
    /// every insertion and update: it should be cheap rather than exact. What
    /// is not counted here is memory that nobody bounds; the default counts
    /// no heap at all.
    fn weigh(&self, value: &V) -> usize {
        size_of_val(value)
    }
}

/// Why a value could not be marshalled or unmarshalled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct MarshalError {
    reason: String,
}

impl MarshalError {
    /// With the reason in words.
    pub fn new(reason: impl Into<String>) -> Self {
        MarshalError {
            reason: reason.into(),
        }
    }

    /// The reason in words.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    fn panicked(payload: &(dyn Any + Send)) -> Self {
        MarshalError::new(format!("the marshaller panicked: {}", panic_text(payload)))
    }
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

/// Marshals, and catches a panic.
pub(crate) fn marshal<V: 'static>(
    marshaller: &dyn Marshal<V>,
    key: &[u8],
    value: &V,
) -> Result<Vec<u8>, MarshalError> {
    let mut out = Vec::new();
    catch_unwind(AssertUnwindSafe(|| {
        marshaller.marshal(key, value, &mut out)
    }))
    .unwrap_or_else(|payload| Err(MarshalError::panicked(&*payload)))
    .map(|()| out)
}

/// Unmarshals, and catches a panic.
pub(crate) fn unmarshal<V: 'static>(
    marshaller: &dyn Marshal<V>,
    key: &[u8],
    bytes: &[u8],
) -> Result<V, MarshalError> {
    catch_unwind(AssertUnwindSafe(|| marshaller.unmarshal(key, bytes)))
        .unwrap_or_else(|payload| Err(MarshalError::panicked(&*payload)))
}

/// Weighs, and takes a panic for the size of the value itself.
pub(crate) fn weigh<V: 'static>(marshaller: &dyn Marshal<V>, value: &V) -> usize {
    catch_unwind(AssertUnwindSafe(|| marshaller.weigh(value)))
        .unwrap_or_else(|_| size_of_val(value))
}

/// Protobuf messages, by prost.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProstMarshal;

impl<V: prost::Message + Default + 'static> Marshal<V> for ProstMarshal {
    fn marshal(&self, _key: &[u8], value: &V, out: &mut Vec<u8>) -> Result<(), MarshalError> {
        out.reserve(value.encoded_len());
        value
            .encode(out)
            .map_err(|error| MarshalError::new(error.to_string()))
    }

    fn unmarshal(&self, _key: &[u8], bytes: &[u8]) -> Result<V, MarshalError> {
        V::decode(bytes).map_err(|error| MarshalError::new(error.to_string()))
    }

    /// The encoded size stands for what the fields hold on the heap.
    fn weigh(&self, value: &V) -> usize {
        size_of_val(value) + value.encoded_len()
    }
}

/// Bytes and text as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainMarshal;

impl Marshal<Vec<u8>> for PlainMarshal {
    fn marshal(&self, _key: &[u8], value: &Vec<u8>, out: &mut Vec<u8>) -> Result<(), MarshalError> {
        out.extend_from_slice(value);
        Ok(())
    }

    fn unmarshal(&self, _key: &[u8], bytes: &[u8]) -> Result<Vec<u8>, MarshalError> {
        Ok(bytes.to_vec())
    }

    fn weigh(&self, value: &Vec<u8>) -> usize {
        size_of_val(value) + value.capacity()
    }
}

impl Marshal<String> for PlainMarshal {
    fn marshal(&self, _key: &[u8], value: &String, out: &mut Vec<u8>) -> Result<(), MarshalError> {
        out.extend_from_slice(value.as_bytes());
        Ok(())
    }

    fn unmarshal(&self, _key: &[u8], bytes: &[u8]) -> Result<String, MarshalError> {
        String::from_utf8(bytes.to_vec()).map_err(|error| MarshalError::new(error.to_string()))
    }

    fn weigh(&self, value: &String) -> usize {
        size_of_val(value) + value.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Wild;

    impl Marshal<u32> for Wild {
        fn marshal(&self, _: &[u8], value: &u32, out: &mut Vec<u8>) -> Result<(), MarshalError> {
            out.push(1);
            match value {
                0 => panic!("nought"),
                1 => Err(MarshalError::new("one")),
                _ => Ok(()),
            }
        }

        fn unmarshal(&self, _: &[u8], bytes: &[u8]) -> Result<u32, MarshalError> {
            Ok(u32::from(bytes[3]))
        }

        fn weigh(&self, _: &u32) -> usize {
            panic!("weightless")
        }
    }

    #[test]
    fn a_panic_is_an_error_with_its_words() {
        let failed = marshal(&Wild, b"k", &0).unwrap_err();
        assert_eq!(failed.reason(), "the marshaller panicked: nought");
        assert_eq!(marshal(&Wild, b"k", &1).unwrap_err().reason(), "one");
        assert_eq!(marshal(&Wild, b"k", &2), Ok(vec![1]));
        let failed = unmarshal(&Wild, b"k", &[]).unwrap_err();
        assert!(failed.reason().contains("out of bounds"), "{failed}");
        assert_eq!(weigh(&Wild, &2), 4);
    }

    #[test]
    fn plain_values_come_back() {
        let text = "grüße".to_owned();
        let bytes = marshal(&PlainMarshal, b"k", &text).unwrap();
        assert_eq!(unmarshal::<String>(&PlainMarshal, b"k", &bytes), Ok(text));
        assert!(unmarshal::<String>(&PlainMarshal, b"k", &[0xff]).is_err());
        assert_eq!(unmarshal::<Vec<u8>>(&PlainMarshal, b"k", &bytes), Ok(bytes));
    }
}
