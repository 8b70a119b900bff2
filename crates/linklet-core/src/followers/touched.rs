//! Eventual: what was committed is told to the copies afterwards.

use super::{Followers, Order};
use crate::core::Core;
use crate::message::{CopyOrder, Operation};
use crate::ranges::RangeSet;
use crate::values::{self, Values};
use bytes::Bytes;
use std::time::Duration;
use trefoil_sharder::{KeyPoint, ServerId, Slice};

impl Followers {
    /// Notes for each copy the keys that were committed.
    fn spread_touched(&mut self) {
        for (point, key) in std::mem::take(&mut self.touched) {
            // A copy that is being dropped hears nothing more; if it is to be there
            // again, it is filled with what is the newest then.
            let followers = self.by_server.values_mut();
            for follower in followers.filter(|follower| follower.follows(point)) {
                follower.untold.insert((point, key.clone()));
            }
        }
    }

    /// Who has not been told of all that was committed.
    fn untold(&self) -> Vec<ServerId> {
        let untold = self.iter().filter(|(_, f)| !f.untold.is_empty());
        untold.map(|(server, _)| server).collect()
    }

    /// The next key that a server has not been told of.
    fn next_untold(&mut self, server: ServerId) -> Option<(KeyPoint, Bytes)> {
        self.by_server.get_mut(&server)?.untold.pop_first()
    }
}

impl Core {
    /// Eventual: tells the copies of what was committed, newest values only, as
    /// far as the window allows.
    pub(super) fn flush_touched(&mut self, now: Duration, values: &mut dyn Values) {
        self.followers.spread_touched();
        for server in self.followers.untold() {
            while self.peers.is_open(server) {
                let Some((point, key)) = self.followers.next_untold(server) else {
                    break;
                };
                self.tell_touched(now, values, server, point, key);
            }
        }
    }

    pub(super) fn tell_touched(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        server: ServerId,
        point: KeyPoint,
        key: Bytes,
    ) {
        let follower = self.followers.get(server);
        if !follower.is_some_and(|follower| follower.follows(point)) {
            return;
        }
        let Some(token) = self.authority.token(point) else {
            return;
        };
        let operation = match values::get(values, point, &key) {
            None => Some(Operation::Remove),
            Some(entry) => entry.value.map(|value| Operation::Put {
                version: entry.version,
                value,
            }),
        };
        // An order waits for its turn behind the attachment.
        self.attach_server(now, server);
        match operation {
            Some(operation) => {
                let note = Order::Apply {
                    point,
                    key: key.clone(),
                    proposal: None,
                };
                let order = CopyOrder::Apply {
                    point,
                    key,
                    operation,
                };
                self.order(now, server, token, order, note);
            }
            None => {
                // It cannot be marshalled: better no copy than an old one.
                let slice = Slice::of_point(point);
                self.followers.exclude(server, &[slice]);
                let order = CopyOrder::Exclude {
                    ranges: vec![slice],
                };
                let note = Order::Exclude(RangeSet::of([slice]));
                self.order(now, server, token, order, note);
            }
        }
    }
}
