//! Which transactions a reader of the database sees.
//!
//! A commit is in the log, and may have been streamed to the relay, *before*
//! other sessions see it: the server makes it visible only after it has been
//! flushed and, with synchronous replication, after standbys have confirmed it.
//! A load that begins in between reads the row from before the change, although
//! the change has been delivered already. So a position counts as *progress*
//! only when every commit up to it is visible to whoever begins to read.

/// A snapshot as `pg_current_snapshot()` prints it: `xmin:xmax:xip,xip…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Every transaction below is finished.
    xmin: u64,
    /// No transaction from here on is finished.
    xmax: u64,
    /// Those in between that are not finished, ascending.
    running: Vec<u64>,
}

/// A text that is no snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no snapshot: expected xmin:xmax:xip,xip…")]
pub struct SnapshotError(pub String);

impl Snapshot {
    /// Reads what the server printed.
    ///
    /// # Errors
    /// The text has another form.
    pub fn parse(text: &str) -> Result<Self, SnapshotError> {
        Self::read(text).ok_or_else(|| SnapshotError(text.into()))
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let xmin = parts.next()?.parse().ok()?;
        let xmax = parts.next()?.parse().ok()?;
        let list = parts.next()?;
        let mut running = Vec::new();
        for xid in list.split(',').filter(|xid| !xid.is_empty()) {
            running.push(xid.parse().ok()?);
        }
        let fine = parts.next().is_none() && xmin <= xmax && running.is_sorted();
        fine.then_some(Snapshot {
            xmin,
            xmax,
            running,
        })
    }

    /// The number that the next transaction will have.
    pub fn next(&self) -> u64 {
        self.xmax
    }

    /// Whether every transaction below this number is finished.
    pub fn finished(&self, below: u64) -> bool {
        self.xmin >= below
    }

    /// Whether a transaction that is in the log is visible. The number comes
    /// without its epoch, as the stream tells it: it is taken as the one
    /// nearest to the snapshot's own numbers.
    pub fn sees(&self, xid: u32) -> bool {
        let distance = xid.wrapping_sub(self.xmax as u32) as i32;
        let full = self.xmax.wrapping_add_signed(i64::from(distance));
        if full >= self.xmax {
            return false;
        }
        full < self.xmin || self.running.binary_search(&full).is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases() {
        let epoch = 3_u64 << 32;
        let late = format!("{}:{}:{}", epoch - 5, epoch + 2, epoch - 3);
        let cases = [
            // snapshot, transaction, visible
            ("10:20:10,14,15", 9, true),
            ("10:20:10,14,15", 10, false),
            ("10:20:10,14,15", 11, true),
            ("10:20:10,14,15", 15, false),
            ("10:20:10,14,15", 19, true),
            ("10:20:10,14,15", 20, false),
            ("10:10:", 9, true),
            ("10:10:", 10, false),
            // Across an epoch's end.
            (late.as_str(), u32::MAX - 5, true),
            (late.as_str(), u32::MAX - 2, false),
            (late.as_str(), u32::MAX - 1, true),
            (late.as_str(), 1, true),
            (late.as_str(), 2, false),
        ];
        for (text, xid, visible) in cases {
            let snapshot = Snapshot::parse(text).expect(text);
            assert_eq!(snapshot.sees(xid), visible, "{xid} in {text}");
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for text in [
            "", "1", "1:2", "2:1:", "1:2::", "a:2:", "1:9:4,3", "-1:2:", "1:2:x",
        ] {
            assert!(Snapshot::parse(text).is_err(), "{text}");
        }
    }
}
