//! Eventual: what was committed is told to the copies afterwards.

use super::{Follower, Order};
use crate::core::Core;
use crate::message::{CopyOrder, Operation};
use crate::ranges::RangeSet;
use crate::values::{self, Values};
use bytes::Bytes;
use std::time::Duration;
use trefoil_sharder::{KeyPoint, ServerId, Slice};

impl Core {
    /// Eventual: tells the copies of what was committed, newest values only, as
    /// far as the window allows.
    pub(super) fn flush_touched(&mut self, now: Duration, values: &mut dyn Values) {
        for (point, key) in std::mem::take(&mut self.touched) {
            let mut rest = self.followers.values_mut();
            // A copy that is being dropped hears nothing more; if it is to be there
            // again, it is filled with what is the newest then.
            let follows = |f: &&mut Follower| f.held.has(point) && !f.excluding.has(point);
            while let Some(follower) = rest.find(follows) {
                follower.untold.insert((point, key.clone()));
            }
        }
        let untold = self.followers.iter().filter(|(_, f)| !f.untold.is_empty());
        for server in untold.map(|(&server, _)| server).collect::<Vec<_>>() {
            while self.is_open(server) {
                let follower = self.followers.get_mut(&server);
                let Some((point, key)) = follower.and_then(|f| f.untold.pop_first()) else {
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
        let follows = |f: &Follower| f.held.has(point) && !f.excluding.has(point);
        if !self.followers.get(&server).is_some_and(follows) {
            return;
        }
        let Some(&token) = self.owned.get(point) else {
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
                if let Some(follower) = self.followers.get_mut(&server) {
                    follower.excluding.add(slice);
                }
                let order = CopyOrder::Exclude {
                    ranges: vec![slice],
                };
                let note = Order::Exclude(RangeSet::of([slice]));
                self.order(now, server, token, order, note);
            }
        }
    }
}
