//! What each request does, whatever keeps the values.

use crate::request::{Request, Status, VALUE_LEN_MAX};
use trefoil_ordered::Answer;

/// What keeps values by keys.
pub trait Table {
    /// Why it cannot any more.
    type Error;

    /// Puts a key's value into `into`, which is emptied; whether there is one.
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Self::Error>;
    /// A value for a key, instead of what there was.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Self::Error>;
    /// No value for a key.
    fn erase(&mut self, key: &[u8]) -> Result<(), Self::Error>;
}

/// Puts an answer together. All of them fit: [`crate::request::VALUE_LEN_MAX`].
pub fn put_answer(answer: &mut Answer, status: Status, value: &[u8]) {
    answer.clear();
    let put = answer.put(&[status as u8]).and_then(|()| answer.put(value));
    debug_assert_eq!(put, Ok(()), "a value of {} bytes", value.len());
}

/// Executes one request. It depends on nothing but the table's content: a request that is
/// executed again after a crash does what it did before, if the table has what it had then.
/// One that evicts may not: exactly once holds for keys that were not evicted since the last
/// checkpoint, before the crash or in the replay. `scratch` is room for a value.
pub fn execute<T: Table>(
    table: &mut T,
    payload: &[u8],
    scratch: &mut Vec<u8>,
    answer: &mut Answer,
) -> Result<(), T::Error> {
    let Ok(request) = Request::decode(payload) else {
        put_answer(answer, Status::Malformed, &[]);
        return Ok(());
    };
    let status = match request {
        Request::Get(key) => match table.get(key, scratch)? {
            true => {
                put_answer(answer, Status::Done, scratch);
                return Ok(());
            }
            false => Status::Missing,
        },
        Request::Set(key, value) => {
            table.put(key, value)?;
            Status::Done
        }
        Request::Erase(key) => {
            table.erase(key)?;
            Status::Done
        }
        Request::Add(key, by) => {
            let present = match table.get(key, scratch)? {
                true => number(scratch),
                false => Some(0),
            };
            match present.map(|present| present.checked_add(by)) {
                None => Status::NoNumber,
                Some(None) => Status::Overflow,
                Some(Some(sum)) => {
                    let text = sum.to_string();
                    table.put(key, text.as_bytes())?;
                    put_answer(answer, Status::Done, text.as_bytes());
                    return Ok(());
                }
            }
        }
        Request::Append(key, more) => {
            table.get(key, scratch)?;
            if scratch.len() + more.len() > VALUE_LEN_MAX {
                Status::TooLong
            } else {
                scratch.extend_from_slice(more);
                table.put(key, scratch)?;
                Status::Done
            }
        }
    };
    put_answer(answer, status, &[]);
    Ok(())
}

fn number(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    #[derive(Default)]
    struct Map(BTreeMap<Vec<u8>, Vec<u8>>);

    impl Table for Map {
        type Error = Infallible;

        fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Infallible> {
            into.clear();
            let found = self.0.get(key);
            into.extend(found.into_iter().flatten());
            Ok(found.is_some())
        }

        fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Infallible> {
            self.0.insert(key.to_vec(), value.to_vec());
            Ok(())
        }

        fn erase(&mut self, key: &[u8]) -> Result<(), Infallible> {
            self.0.remove(key);
            Ok(())
        }
    }

    #[test]
    fn each_request_does_what_it_says() {
        let mut map = Map::default();
        let (mut bytes, mut scratch, mut answer) = (Vec::new(), Vec::new(), Answer::default());
        let long = [b'x'; VALUE_LEN_MAX];
        for (request, status, value) in [
            (Request::Get(b"k"), Status::Missing, &b""[..]),
            (Request::Set(b"k", b"v"), Status::Done, b""),
            (Request::Get(b"k"), Status::Done, b"v"),
            (Request::Add(b"k", 1), Status::NoNumber, b""),
            (Request::Append(b"k", b"w"), Status::Done, b""),
            (Request::Get(b"k"), Status::Done, b"vw"),
            (Request::Append(b"k", &long), Status::TooLong, b""),
            (Request::Get(b"k"), Status::Done, b"vw"),
            (Request::Erase(b"k"), Status::Done, b""),
            (Request::Get(b"k"), Status::Missing, b""),
            (Request::Append(b"k", b"12"), Status::Done, b""),
            (Request::Add(b"k", -13), Status::Done, b"-1"),
            (
                Request::Add(b"n", i64::MAX),
                Status::Done,
                b"9223372036854775807",
            ),
            (Request::Add(b"n", 1), Status::Overflow, b""),
            (Request::Get(b"n"), Status::Done, b"9223372036854775807"),
            (Request::Set(b"k", b""), Status::Done, b""),
            (Request::Get(b"k"), Status::Done, b""),
            (Request::Add(b"k", 1), Status::NoNumber, b""),
        ] {
            request.encode(&mut bytes).expect("a request");
            let Ok(()) = execute(&mut map, &bytes, &mut scratch, &mut answer);
            assert_eq!(
                Status::of(answer.bytes()),
                Some((status, value)),
                "{request:?}"
            );
        }
        let Ok(()) = execute(&mut map, b"nonsense", &mut scratch, &mut answer);
        assert_eq!(answer.bytes(), [Status::Malformed as u8]);
    }
}
