//! Comparisons and writes that happen at one moment.

use crate::generated as pb;

/// If all comparisons hold, all writes are carried out; else none.
///
/// A transaction that compares the revision of every key that it writes may be sent
/// twice: the second one fails, if the first was carried out.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    request: pb::TxnRequest,
}

impl Transaction {
    /// One that does nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only if `key` was last written at `revision`; 0: only if it does not exist.
    #[must_use]
    pub fn if_revision(mut self, key: &str, revision: i64) -> Self {
        self.request.compare.push(pb::Compare {
            result: pb::compare::CompareResult::Equal.into(),
            target: pb::compare::CompareTarget::Mod.into(),
            key: key.into(),
            target_union: Some(pb::compare::TargetUnion::ModRevision(revision)),
        });
        self
    }

    /// Writes `key`; bound to a lease, it goes with that.
    #[must_use]
    pub fn put(mut self, key: &str, value: Vec<u8>, lease: Option<i64>) -> Self {
        let put = pb::PutRequest {
            key: key.into(),
            value,
            lease: lease.unwrap_or(0),
        };
        self.request.success.push(pb::RequestOp {
            request: Some(pb::request_op::Request::RequestPut(put)),
        });
        self
    }

    /// Deletes `key`.
    #[must_use]
    pub fn delete(mut self, key: &str) -> Self {
        let delete = pb::DeleteRangeRequest {
            key: key.into(),
            range_end: Vec::new(),
        };
        self.request.success.push(pb::RequestOp {
            request: Some(pb::request_op::Request::RequestDeleteRange(delete)),
        });
        self
    }

    pub(crate) fn into_request(self) -> pb::TxnRequest {
        self.request
    }
}

/// The first key behind all that begin with `prefix`.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // Nothing is behind: etcd's word for "to the end".
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_prefixes() {
        assert_eq!(prefix_end(b"ab/"), b"ab0");
        assert_eq!(prefix_end(b"a\xff"), b"b");
        assert_eq!(prefix_end(b"\xff"), [0]);
    }
}
