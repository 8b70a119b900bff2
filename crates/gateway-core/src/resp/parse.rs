//! Requests as bytes: numbers, lines, bulk strings.

/// Longest line without an end, as Redis has it: a command in one line, or
/// the line with a length.
pub(super) const LINE_LEN_MAX: usize = 64 * 1024;
/// Longest bulk string that has a place in the protocol (Redis's
/// `proto-max-bulk-len`). What is longer than the cell takes, but not than
/// this, is skipped and answered by an error; the connection lives on.
pub(super) const BULK_LEN_MAX: usize = 512 << 20;
/// Most arguments of one command.
const ARGUMENTS_MAX: i64 = i32::MAX as i64;
/// The same two before authentication.
const BULK_LEN_MAX_UNKNOWN: usize = 16 * 1024;
const ARGUMENTS_MAX_UNKNOWN: i64 = 10;

/// Why the next command cannot be found; the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProtocolError {
    CountLineTooLong,
    Count,
    CountUnauthenticated,
    LengthLineTooLong,
    Length,
    LengthUnauthenticated,
    NoLength(u8),
    InlineTooLong,
    Quotes,
}

impl ProtocolError {
    /// Redis's words, after `Protocol error: `.
    pub(super) fn put_words(self, out: &mut Vec<u8>) {
        let words: &[u8] = match self {
            ProtocolError::CountLineTooLong => b"too big mbulk count string",
            ProtocolError::Count => b"invalid multibulk length",
            ProtocolError::CountUnauthenticated => b"unauthenticated multibulk length",
            ProtocolError::LengthLineTooLong => b"too big bulk count string",
            ProtocolError::Length => b"invalid bulk length",
            ProtocolError::LengthUnauthenticated => b"unauthenticated bulk length",
            ProtocolError::NoLength(found) => {
                let found = if matches!(found, b'\r' | b'\n') {
                    b' '
                } else {
                    found
                };
                out.extend_from_slice(b"expected '$', got '");
                out.push(found);
                b"'"
            }
            ProtocolError::InlineTooLong => b"too big inline request",
            ProtocolError::Quotes => b"unbalanced quotes in request",
        };
        out.extend_from_slice(words);
    }
}

/// A signed 64-bit number in its only spelling: no plus sign, no blanks, no
/// leading zeros.
pub(super) fn number(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    // Negative numbers reach further by one, so count down.
    let mut number: i64 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number
            .checked_mul(10)?
            .checked_sub(i64::from(digit - b'0'))?;
    }
    if negative {
        Some(number)
    } else {
        number.checked_neg()
    }
}

/// Where a line ends: its content's end, and where the next one begins. Redis
/// looks for the carriage return and takes the byte after it on trust.
fn line(bytes: &[u8]) -> Option<(usize, usize)> {
    let end = bytes.iter().position(|&byte| byte == b'\r')?;
    (bytes.len() > end + 1).then_some((end, end + 2))
}

/// What there is at some place of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<T> {
    /// All of it.
    Whole(T),
    /// Not all of it yet.
    Incomplete,
    /// Nonsense.
    Bad(ProtocolError),
}

/// The count of arguments at the front of the bytes, which begin with `*`, and
/// the length of its line.
pub(super) fn count(bytes: &[u8], is_known: bool) -> Part<(i64, usize)> {
    let Some((end, next)) = line(bytes) else {
        return if bytes.len() > LINE_LEN_MAX {
            Part::Bad(ProtocolError::CountLineTooLong)
        } else {
            Part::Incomplete
        };
    };
    match number(&bytes[1..end]) {
        None => Part::Bad(ProtocolError::Count),
        Some(count) if count > ARGUMENTS_MAX => Part::Bad(ProtocolError::Count),
        Some(count) if count > ARGUMENTS_MAX_UNKNOWN && !is_known => {
            Part::Bad(ProtocolError::CountUnauthenticated)
        }
        Some(count) => Part::Whole((count, next)),
    }
}

/// The length of the bulk string at the front of the bytes, and the length of
/// its line.
pub(super) fn bulk_len(bytes: &[u8], is_known: bool) -> Part<(usize, usize)> {
    let Some((end, next)) = line(bytes) else {
        return if bytes.len() > LINE_LEN_MAX {
            Part::Bad(ProtocolError::LengthLineTooLong)
        } else {
            Part::Incomplete
        };
    };
    if bytes[0] != b'$' {
        return Part::Bad(ProtocolError::NoLength(bytes[0]));
    }
    match number(&bytes[1..end]).map(usize::try_from) {
        Some(Ok(len)) if len > BULK_LEN_MAX => Part::Bad(ProtocolError::Length),
        Some(Ok(len)) if len > BULK_LEN_MAX_UNKNOWN && !is_known => {
            Part::Bad(ProtocolError::LengthUnauthenticated)
        }
        Some(Ok(len)) => Part::Whole((len, next)),
        _ => Part::Bad(ProtocolError::Length),
    }
}

/// The second word of the command at the front of this input, if it has come as a whole and
/// is not long: the key of most commands.
#[inline]
pub(super) fn second_word(input: &[u8]) -> Option<&[u8]> {
    let (_, rest) = short_number(input.strip_prefix(b"*")?)?;
    let (_, rest) = short_word(rest)?;
    Some(short_word(rest)?.0)
}

/// A word, and what is behind it.
#[inline]
fn short_word(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = short_number(input.strip_prefix(b"$")?)?;
    Some((rest.get(..len)?, rest.get(len + 2..)?))
}

/// A number of up to three digits, and what is behind its line.
#[inline]
fn short_number(input: &[u8]) -> Option<(usize, &[u8])> {
    let mut number = 0;
    for (at, byte) in input.iter().enumerate().take(4) {
        match byte {
            b'0'..=b'9' => number = 10 * number + usize::from(byte - b'0'),
            b'\r' => return Some((number, input.get(at + 2..)?)),
            _ => return None,
        }
    }
    None
}

/// The words of a command in one line. Words may be quoted; within double
/// quotes there are escapes.
pub(super) fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        let blanks = rest.iter().take_while(|&&byte| is_blank(byte)).count();
        rest = &rest[blanks..];
        if rest.is_empty() || rest[0] == 0 {
            return Some(words);
        }
        let (word, used) = word(rest)?;
        words.push(word);
        rest = &rest[used..];
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// One word and the bytes that it takes; `None` if its quotes do not match.
fn word(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut word = Vec::new();
    let mut at = 0;
    let mut quote = None;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match (quote, byte) {
            (None, b' ' | b'\n' | b'\r' | b'\t' | 0) => return Some((word, at)),
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, _) => word.push(byte),
            (Some(_), 0) => return None,
            (Some(open), _) if byte == open => {
                // The closing quote ends the word.
                return match bytes.get(at) {
                    Some(&next) if !is_blank(next) && next != 0 => None,
                    _ => Some((word, at)),
                };
            }
            (Some(b'"'), b'\\') if bytes.get(at).is_some_and(|&next| next != 0) => {
                let (byte, used) = escape(&bytes[at..]);
                word.push(byte);
                at += used;
            }
            (Some(b'\''), b'\\') if bytes.get(at) == Some(&b'\'') => {
                word.push(b'\'');
                at += 1;
            }
            (Some(_), _) => word.push(byte),
        }
    }
    quote.is_none().then_some((word, at))
}

/// The byte that an escape stands for, and its length without the backslash.
fn escape(bytes: &[u8]) -> (u8, usize) {
    let hex = |byte: u8| char::from(byte).to_digit(16);
    if let [b'x', high, low, ..] = *bytes
        && let (Some(high), Some(low)) = (hex(high), hex(low))
    {
        return ((high * 16 + low) as u8, 3);
    }
    let byte = match bytes[0] {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        byte => byte,
    };
    (byte, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_spelling() {
        let cases: [(&str, Option<i64>); 16] = [
            ("0", Some(0)),
            ("-0", None),
            ("00", None),
            ("01", None),
            ("1", Some(1)),
            ("-1", Some(-1)),
            ("+1", None),
            (" 1", None),
            ("1 ", None),
            ("", None),
            ("-", None),
            ("1x", None),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("-9223372036854775808", Some(i64::MIN)),
            ("-9223372036854775809", None),
        ];
        for (text, expected) in cases {
            assert_eq!(number(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn keys_are_seen_ahead() {
        let cases: [(&str, Option<&str>); 9] = [
            ("*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n", Some("key")),
            ("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nva", Some("k")),
            ("*2\r\n$3\r\nGET\r\n$0\r\n\r\n", Some("")),
            ("*2\r\n$3\r\nGET\r\n$3\r\nke", None),
            ("*1\r\n$4\r\nPING\r\n", None),
            ("*2\r\n$3\r\nGET\r\n$1000\r\nk", None),
            ("*-1\r\n", None),
            ("GET k\r\n", None),
            ("", None),
        ];
        for (input, key) in cases {
            let seen = second_word(input.as_bytes());
            assert_eq!(seen, key.map(str::as_bytes), "{input:?}");
        }
    }

    #[test]
    fn words_and_quotes() {
        let cases: [(&str, Option<&[&str]>); 12] = [
            ("", Some(&[])),
            ("  ", Some(&[])),
            ("get a", Some(&["get", "a"])),
            ("  get \t a  ", Some(&["get", "a"])),
            (r#"set "a b" 'c d'"#, Some(&["set", "a b", "c d"])),
            (r#""\x41\n\\\"""#, Some(&["A\n\\\""])),
            (r#"'\x\''"#, Some(&["\\x'"])),
            (r#""""#, Some(&[""])),
            (r#"ab"cd""#, Some(&["abcd"])),
            (r#""abc"#, None),
            (r#""abc"d"#, None),
            ("'abc", None),
        ];
        for (line, expected) in cases {
            let expected = expected.map(|words| {
                words
                    .iter()
                    .map(|word| word.as_bytes().to_vec())
                    .collect::<Vec<_>>()
            });
            assert_eq!(split(line.as_bytes()), expected, "{line:?}");
        }
    }
}
