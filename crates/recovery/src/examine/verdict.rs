//! What is wrong with a key, by what its replicas hold.
//!
//! The number of copies says the mode: one (R=1), two (R=2, either answers alone) or three
//! (R=3.2, two must agree). `verdicts.txt`, beside this file, has the table as cases.

use trefoil_layout::Version;

/// What one replica holds of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// Nobody could read it.
    Unread,
    /// No value, or one that has expired or was flushed.
    Absent,
    /// A value whose checksum holds, if it was read.
    Present {
        /// The mutation that wrote it.
        version: Version,
        /// Of key, value and metadata, without the version; `None` if only the index
        /// was read.
        digest: Option<u64>,
    },
    /// A value that does not match its index entry.
    Corrupt {
        /// What the index entry says.
        version: Version,
    },
}

impl Copy {
    /// The version in the index entry, if there is one.
    pub const fn version(self) -> Option<Version> {
        match self {
            Copy::Unread | Copy::Absent => None,
            Copy::Present { version, .. } | Copy::Corrupt { version } => Some(version),
        }
    }

    const fn is_unread(self) -> bool {
        matches!(self, Copy::Unread)
    }
}

/// How one replica of three differs from the other two, which agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Odd {
    /// It holds nothing, they hold a value.
    Lacks,
    /// It holds an older value.
    Older,
    /// It holds a newer value.
    Newer,
    /// It holds a value, they hold nothing.
    Holds,
    /// It holds another value of the same version.
    Differs,
}

/// What is wrong with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody holds anything.
    Nothing,
    /// All replicas agree.
    Clean,
    /// Exactly two of three agree; or the two of R=2 do not.
    Dirty {
        /// Place in the cohort of the one that differs. At R=2: of the one that holds
        /// nothing, else the second.
        replica: usize,
        /// How it differs.
        how: Odd,
    },
    /// No two of three agree.
    Inquorate,
    /// At least one copy does not match its index entry.
    Corrupt,
    /// What could be read agrees, but not every replica could be read.
    Short,
}

/// The verdict over a key's copies, in the order of the cohort.
///
/// # Panics
/// If there are none or more than three.
pub fn judge(copies: &[Copy]) -> Verdict {
    assert!((1..=3).contains(&copies.len()), "one to three copies");
    if copies
        .iter()
        .any(|copy| matches!(copy, Copy::Corrupt { .. }))
    {
        return Verdict::Corrupt;
    }
    let read: Vec<usize> = (0..copies.len())
        .filter(|at| !copies[*at].is_unread())
        .collect();
    if read.iter().all(|at| copies[*at] == Copy::Absent) {
        return Verdict::Nothing;
    }
    let agree = |a: usize, b: usize| match copies.len() {
        2 => say_the_same(copies[a], copies[b]),
        _ => are_of_one_mutation(copies[a], copies[b]),
    };
    let dirty = |replica: usize, other: usize| Verdict::Dirty {
        replica,
        how: oddness(copies[replica], copies[other]),
    };
    match (copies.len(), read.as_slice()) {
        (1, _) => Verdict::Clean,
        (2, &[a, b]) if agree(a, b) => Verdict::Clean,
        // Either answers alone: that they differ is as much as can be said.
        (2, &[a, b]) if copies[a] == Copy::Absent => dirty(a, b),
        (2, &[a, b]) => dirty(b, a),
        (3, &[a, b, c]) => match (agree(a, b), agree(b, c), agree(a, c)) {
            (true, true, _) => Verdict::Clean,
            (true, ..) => dirty(c, a),
            (_, true, _) => dirty(a, b),
            (.., true) => dirty(b, a),
            _ => Verdict::Inquorate,
        },
        (3, &[a, b]) if !agree(a, b) => Verdict::Inquorate,
        _ => Verdict::Short,
    }
}

/// Two votes of R=3.2. Versions are unique: the same one with another value is damage
/// that no checksum shows.
fn are_of_one_mutation(a: Copy, b: Copy) -> bool {
    match (a, b) {
        (Copy::Absent, Copy::Absent) => true,
        (
            Copy::Present { version, digest },
            Copy::Present {
                version: other_version,
                digest: other,
            },
        ) => version == other_version && (digest.is_none() || other.is_none() || digest == other),
        _ => false,
    }
}

/// Two copies of R=2: whoever asks either gets the same value.
fn say_the_same(a: Copy, b: Copy) -> bool {
    match (a, b) {
        (
            Copy::Present {
                digest: Some(digest),
                ..
            },
            Copy::Present {
                digest: Some(other),
                ..
            },
        ) => digest == other,
        _ => are_of_one_mutation(a, b),
    }
}

fn oddness(odd: Copy, others: Copy) -> Odd {
    match (odd.version(), others.version()) {
        (None, _) => Odd::Lacks,
        (_, None) => Odd::Holds,
        (Some(version), Some(other)) if version < other => Odd::Older,
        (Some(version), Some(other)) if version > other => Odd::Newer,
        _ => Odd::Differs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy as the table has it.
    fn copy(text: &str) -> Copy {
        let version = |text: &str| Version::new(text.parse().unwrap(), 1, 0);
        match text {
            "?" => Copy::Unread,
            "-" => Copy::Absent,
            _ if text.starts_with('!') => Copy::Corrupt {
                version: version(&text[1..]),
            },
            _ => {
                let (number, digest) = match text.split_once(':') {
                    Some((number, digest)) => (number, digest.as_bytes().first().copied()),
                    None => (text, None),
                };
                Copy::Present {
                    version: version(number),
                    digest: digest.map(u64::from),
                }
            }
        }
    }

    fn named(verdict: Verdict) -> String {
        match verdict {
            Verdict::Dirty { replica, how } => format!("dirty {replica} {how:?}").to_lowercase(),
            verdict => format!("{verdict:?}").to_lowercase(),
        }
    }

    #[test]
    fn every_case_of_the_table_holds() {
        let table = include_str!("verdicts.txt");
        let mut count = 0;
        for line in table.lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let Some((copies, wanted)) = line.split_once("=>") else {
                assert!(line.is_empty(), "no case: {line}");
                continue;
            };
            let copies: Vec<Copy> = copies.split_whitespace().map(copy).collect();
            assert_eq!(named(judge(&copies)), wanted.trim(), "{line}");
            count += 1;
        }
        assert!(count > 30, "{count} cases");
    }

    /// Which replica is which does not matter, but for who is named.
    #[test]
    fn the_order_of_replicas_does_not_matter() {
        let all = ["?", "-", "1", "2", "1:a", "1:b", "!1"].map(copy);
        let kind = |copies: &[Copy]| std::mem::discriminant(&judge(copies));
        for a in all {
            for b in all {
                assert_eq!(kind(&[a, b]), kind(&[b, a]), "{a:?} {b:?}");
                for c in all {
                    let wanted = kind(&[a, b, c]);
                    for other in [[a, c, b], [b, a, c], [b, c, a], [c, a, b], [c, b, a]] {
                        // A digest that is not known agrees with any: that is not
                        // transitive, and does not occur within one walk.
                        let unknown =
                            |copy: &Copy| matches!(copy, Copy::Present { digest: None, .. });
                        let known = |copy: &Copy| {
                            matches!(
                                copy,
                                Copy::Present {
                                    digest: Some(_),
                                    ..
                                }
                            )
                        };
                        if other.iter().any(unknown) && other.iter().any(known) {
                            continue;
                        }
                        assert_eq!(kind(&other), wanted, "{other:?}");
                    }
                }
            }
        }
    }
}
