//! The first line of a script that says what it is: `#!lua flags=no-writes`.

/// Flags of scripts and functions. All but the first one mean nothing here: there is always
/// memory (or an error that says so), no replica that lags, and one key.
pub(super) const FLAGS: [&str; 5] = [
    NO_WRITES,
    "allow-oom",
    "allow-stale",
    "no-cluster",
    "allow-cross-slot-keys",
];
const NO_WRITES: &str = "no-writes";

/// What it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shebang {
    /// Where the program begins: at the end of this line, so that lines keep their
    /// numbers. 0 without such a line.
    pub(super) len: usize,
    /// Commands that write are refused.
    pub(super) is_read_only: bool,
}

impl Shebang {
    /// Whether there is such a line.
    pub(super) fn is_there(&self) -> bool {
        self.len > 0
    }

    /// That of a script; the error that Redis answers if it cannot be understood.
    pub(super) fn of(source: &[u8]) -> Result<Self, Vec<u8>> {
        if !source.starts_with(b"#!") {
            return Ok(Shebang::default());
        }
        let Some(len) = memchr::memchr(b'\n', source) else {
            return Err(b"ERR Invalid script shebang".to_vec());
        };
        let mut words = source[..len].split(|byte| *byte == b' ');
        let engine = words.next().unwrap_or_default();
        if engine != b"#!lua" {
            let words = [b"ERR Unexpected engine in script shebang: ", engine];
            return Err(words.concat());
        }
        let mut is_read_only = false;
        for word in words.filter(|word| !word.is_empty()) {
            let Some(flags) = word.strip_prefix(b"flags=") else {
                return Err([b"ERR Unknown lua shebang option: ", word].concat());
            };
            for flag in flags.split(|byte| *byte == b',') {
                match flag {
                    flag if flag == NO_WRITES.as_bytes() => is_read_only = true,
                    flag if FLAGS.iter().any(|known| known.as_bytes() == flag) => {}
                    other => {
                        return Err([b"ERR Unexpected flag in script shebang: ", other].concat());
                    }
                }
            }
        }
        Ok(Shebang { len, is_read_only })
    }
}

#[cfg(test)]
mod tests {
    use super::Shebang;

    #[test]
    fn first_lines() {
        let cases = [
            ("return 1", Ok((0, false))),
            ("#!lua\nreturn 1", Ok((5, false))),
            ("#!lua flags=no-writes\n", Ok((21, true))),
            ("#!lua  flags=allow-stale,no-writes\n", Ok((34, true))),
            ("#!lua", Err("ERR Invalid script shebang")),
            (
                "#!js\n",
                Err("ERR Unexpected engine in script shebang: #!js"),
            ),
            (
                "#!lua flags=x\n",
                Err("ERR Unexpected flag in script shebang: x"),
            ),
            (
                "#!lua name=x\n",
                Err("ERR Unknown lua shebang option: name=x"),
            ),
        ];
        for (source, expected) in cases {
            let found = Shebang::of(source.as_bytes());
            let found = found.map(|of| (of.len, of.is_read_only));
            let expected = expected.map_err(|words| words.as_bytes().to_vec());
            assert_eq!(found, expected, "{source}");
        }
    }
}
