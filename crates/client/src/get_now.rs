//! Lookups for those who must not wait: event loops. They read shared memory, and
//! give up before anything that would wait for somebody.

use crate::client::Client;
use crate::error::OpError;
use crate::get::{Lookup, Miss, hit};
use crate::time;
use trefoil_client_core::get::GetOutcome;
use trefoil_driver::Purpose;

impl Client {
    /// [`Client::get`], or [`Client::peek`] unless `is_use`, if that takes no
    /// waiting; `None` if it does: whoever may wait asks again.
    pub fn get_now(&mut self, key: &[u8], is_use: bool) -> Option<Result<Lookup<'_>, OpError>> {
        if let Err(error) = self.check_lookup(key) {
            return Some(Err(error));
        }
        self.settle_topology();
        let now = time::coarse_ns();
        let limits = self.driver.limits(now);
        let purpose = match is_use {
            true => Purpose::Use,
            // Most likely to write on the strength of it.
            false => Purpose::Basis,
        };
        let inline = self.driver.get_now(key, now, limits, purpose)?;
        self.driver.counters_mut().add(&inline.outcome);
        match inline.outcome {
            GetOutcome::Hit { version, .. } => {
                Some(hit(self.driver.inline_bytes(&inline), version))
            }
            GetOutcome::Miss { reason } => {
                let stamps = self.driver.missed(&inline);
                Some(Ok(Lookup::Miss(Miss::new(reason, stamps))))
            }
            GetOutcome::Failed { .. } => None,
        }
    }

    /// [`Client::get_many`] as far as that takes no waiting: how many keys were
    /// handed out. `on` returns whether it wants more.
    pub fn get_many_now<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut on: impl FnMut(usize, Result<Lookup<'_>, OpError>) -> bool,
    ) -> usize {
        let mut done = 0;
        let mut wants_more = true;
        while done < keys.len() && wants_more {
            self.settle_topology();
            // What is read but not wanted any more is not handed out.
            let mut handed_out = 0;
            self.get_overlapping(&keys[done..], |index, found| {
                if wants_more {
                    handed_out = index + 1;
                    wants_more = on(done + index, found);
                }
            });
            done += handed_out;
            if !wants_more {
                return done;
            }
            let Some(key) = keys.get(done) else {
                return done;
            };
            let Some(found) = self.get_now(key.as_ref(), true) else {
                return done;
            };
            wants_more = on(done, found);
            done += 1;
        }
        done
    }
}
