//! Who is a member, by the leases that this assigner has granted. Time is an
//! argument; nothing waits.
//!
//! 1. A member is dropped only when nothing was heard of it for the whole
//!    lease, by this assigner's clock and while this assigner was running: a
//!    pause of its own is nobody else's silence.
//! 2. One that begins to lead gives everybody the time of a whole lease, or of
//!    the longer one that its predecessor may have granted just before
//!    ([`LeaseTerms`]).
//! 3. Who was dropped is told so, and never comes back under that id.
//! 4. Where nobody at all is heard any more, it is this assigner that is cut off, as far as
//!    it can know: nobody is dropped, and once somebody is heard again everybody has the
//!    time for it that the silence took. Else one bad link would empty a whole store. A
//!    server that is alone is no *everybody*; one at whose address a new life has come is
//!    waited for no longer than its lease.

use crate::error::Refusal;
use crate::limits::MEMBERS_MAX;
use crate::wire::MemberRecord;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use trefoil_sharder::coordination::LeaseTerms;
use trefoil_sharder::{Member, MemberState, ServerId};

/// For how long a life is remembered that is a member no more, or was told that it is none: a
/// registration of it may still be in a socket's buffer, sent before that.
const GONE_FOR: Duration = Duration::from_secs(60);
/// So many of them; the oldest are forgotten first.
const GONE_MAX: usize = MEMBERS_MAX;

/// The members of one corpus, as the one who leads knows them.
#[derive(Debug)]
pub(crate) struct MemberTable {
    pub(crate) leases: LeaseTerms,
    entries: BTreeMap<ServerId, Entry>,
    /// When anybody was heard last.
    heard: Duration,
    gone: Gone,
}

/// Lives that come back under another id, if at all, with when they went.
#[derive(Debug, Default)]
struct Gone {
    lives: BTreeMap<Life, Duration>,
    /// The oldest first; some are in there that are not gone any more.
    order: VecDeque<(Duration, Life)>,
}

type Life = (ServerId, u64);

#[derive(Debug)]
struct Entry {
    record: MemberRecord,
    heard: Duration,
    /// When it asked to be a member.
    asked: Duration,
    /// It is being struck off.
    dropped: bool,
    /// A new life of it has come: it is not heard any more.
    superseded: Option<ServerId>,
}

/// What a registration asks for.
#[derive(Debug, PartialEq)]
pub(crate) enum Admission {
    /// It is a member already, just as it says.
    Known,
    /// Write the record, then [`MemberTable::update`] it.
    Update,
    /// Write the record, then [`MemberTable::insert`] it.
    Insert,
}

impl MemberTable {
    /// Begins with those that the store has.
    pub(crate) fn new(leases: LeaseTerms, now: Duration, members: Vec<MemberRecord>) -> Self {
        let mut table = MemberTable {
            leases,
            entries: BTreeMap::new(),
            heard: now,
            gone: Gone::default(),
        };
        for record in members {
            // Nobody is told: who is a former life hears it when it asks.
            let _ = table.insert(now, now, record);
        }
        table
    }

    /// Whether a registration may be written. `again`: it may have been written before, so who
    /// is not here was struck off. Who is told so is told it for good: an earlier attempt of its
    /// may arrive later. `trusted`: it was a member before, and the store may have forgotten it.
    pub(crate) fn admit(
        &mut self,
        now: Duration,
        record: &MemberRecord,
        again: bool,
        trusted: bool,
    ) -> Result<Admission, Refusal> {
        let full = self.entries.len() >= MEMBERS_MAX;
        match self.entries.get_mut(&record.id) {
            Some(entry) if entry.record.life != record.life => {
                return Err(Refusal::IdInUse {
                    address: entry.record.info.address.clone(),
                });
            }
            Some(entry) => {
                entry.alive()?;
                let admission = match entry.record == *record {
                    true => Admission::Known,
                    false => Admission::Update,
                };
                self.hear(now, record.id);
                return Ok(admission);
            }
            None if !trusted && (again || self.gone.has(now, (record.id, record.life))) => {
                self.gone.add(now, (record.id, record.life));
                return Err(Refusal::Expired);
            }
            None if full => {
                return Err(Refusal::Invalid(format!(
                    "there are {MEMBERS_MAX} members, which is the limit"
                )));
            }
            None => {}
        }
        self.gone.lives.remove(&(record.id, record.life));
        Ok(Admission::Insert)
    }

    /// A record is written that was asked for at `asked`. Former lives at the same address are
    /// heard no more; their leases run out. It may have left, or have a later life, meanwhile.
    pub(crate) fn insert(
        &mut self,
        now: Duration,
        asked: Duration,
        record: MemberRecord,
    ) -> Result<(), Refusal> {
        let silence = self.deaf(now);
        let mut superseded = None;
        for (id, entry) in &mut self.entries {
            if *id != record.id
                && entry.record.info.address == record.info.address
                && entry.superseded.is_none()
            {
                // What takes longer to be written is no later life for that.
                match entry.asked <= asked {
                    true => entry.superseded = Some(record.id),
                    false => superseded = Some(*id),
                }
            }
        }
        self.end_silence(now, silence);
        let entry = Entry {
            heard: now,
            asked,
            dropped: self.gone.has(now, (record.id, record.life)),
            superseded,
            record,
        };
        let is_member = entry.alive();
        self.entries.insert(entry.record.id, entry);
        is_member
    }

    /// Hears a member. `Some`: its record has to be written with this state.
    pub(crate) fn keep_alive(
        &mut self,
        now: Duration,
        id: ServerId,
        life: u64,
        state: MemberState,
    ) -> Result<Option<MemberRecord>, Refusal> {
        // Whether it was dropped or never here is found out by registering.
        let entry = self.entries.get_mut(&id).ok_or(Refusal::Unknown)?;
        if entry.record.life != life {
            return Err(Refusal::IdInUse {
                address: entry.record.info.address.clone(),
            });
        }
        entry.alive()?;
        let mut record = entry.record.clone();
        self.hear(now, id);
        if record.info.state == state {
            return Ok(None);
        }
        record.info.state = state;
        Ok(Some(record))
    }

    fn hear(&mut self, now: Duration, id: ServerId) {
        self.end_silence(now, self.deaf(now));
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.heard = now;
        }
    }

    /// Somebody is heard: if nobody was for long, that was nobody's own silence.
    fn end_silence(&mut self, now: Duration, silence: Option<Duration>) {
        if let Some(gap) = silence {
            for entry in self.entries.values_mut().filter(|e| e.alive().is_ok()) {
                entry.heard += gap;
            }
        }
        self.heard = now;
    }

    /// For how long nobody was heard, if that is too long for servers that have nothing in
    /// common but this assigner.
    pub(crate) fn deaf(&self, now: Duration) -> Option<Duration> {
        let gap = now.saturating_sub(self.heard);
        let alive = self.entries.values().filter(|e| e.alive().is_ok());
        (gap >= self.leases.own() / 2 && alive.count() > 1).then_some(gap)
    }

    /// A member's changed record is written. If the member was struck off in
    /// the meantime, so is what was written.
    pub(crate) fn update(&mut self, now: Duration, record: MemberRecord) -> Result<(), Refusal> {
        match self.entries.get_mut(&record.id) {
            Some(entry) => {
                entry.record = record;
                entry.alive()
            }
            None => {
                let id = record.id;
                let _ = self.insert(now, now, record);
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.dropped = true;
                }
                Err(Refusal::Expired)
            }
        }
    }

    /// Whether this life of a process may leave: nobody else may do it for it.
    pub(crate) fn may_leave(&self, id: ServerId, life: u64) -> bool {
        self.entries
            .get(&id)
            .is_some_and(|entry| entry.record.life == life)
    }

    /// This assigner has stood still for so long.
    pub(crate) fn stood_still(&mut self, gap: Duration) {
        self.leases.stood_still(gap);
        self.heard += gap;
        for entry in self.entries.values_mut() {
            entry.heard += gap;
        }
    }

    /// Who is to be struck off now: the leases that have ended, and those whose
    /// striking off has failed before.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<ServerId> {
        let is_deaf = self.deaf(now).is_some();
        let leases = &self.leases;
        self.entries
            .iter_mut()
            .filter_map(|(&id, entry)| {
                let excused = is_deaf && entry.superseded.is_none();
                entry.dropped |= !excused && now >= leases.ends(entry.heard);
                entry.dropped.then_some(id)
            })
            .collect()
    }

    /// It was struck off by somebody before: it is so again.
    pub(crate) fn drop_member(&mut self, id: ServerId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.dropped = true;
        }
    }

    /// Whether somebody is being struck off.
    pub(crate) fn has_dropped(&self) -> bool {
        self.entries.values().any(|entry| entry.dropped)
    }

    /// Struck off.
    pub(crate) fn remove(&mut self, now: Duration, id: ServerId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.gone.add(now, (id, entry.record.life));
        }
    }

    /// A life has left that is no member yet: its registration comes to nothing.
    pub(crate) fn has_left(&mut self, now: Duration, id: ServerId, life: u64) {
        self.gone.add(now, (id, life));
    }

    /// As the balancer sees them: who is being struck off still counts, so
    /// that its slices go to others only when nobody is told of it any more.
    pub(crate) fn members(&self) -> Vec<Member> {
        self.entries
            .values()
            .map(|entry| entry.record.info.member(entry.record.id))
            .collect()
    }

    /// Replicas that the member that asks for most asks for.
    pub(crate) fn copies_min(&self) -> usize {
        let asked = self.entries.values().map(|e| e.record.info.copies_min);
        asked.max().unwrap_or(1)
    }

    /// Each with how long ago it was heard.
    pub(crate) fn iter(&self, now: Duration) -> impl Iterator<Item = (&MemberRecord, Duration)> {
        self.entries
            .values()
            .map(move |entry| (&entry.record, now.saturating_sub(entry.heard)))
    }

    pub(crate) fn knows(&self, id: ServerId) -> bool {
        self.entries.contains_key(&id)
    }

    pub(crate) fn ids(&self) -> BTreeSet<ServerId> {
        self.entries.keys().copied().collect()
    }
}

impl Gone {
    fn has(&self, now: Duration, life: Life) -> bool {
        let since = self.lives.get(&life);
        since.is_some_and(|&since| now < since + GONE_FOR)
    }

    fn add(&mut self, now: Duration, life: Life) {
        while let Some(&(since, oldest)) = self.order.front()
            && (now >= since + GONE_FOR || self.order.len() >= GONE_MAX)
        {
            self.order.pop_front();
            if self.lives.get(&oldest) == Some(&since) {
                self.lives.remove(&oldest);
            }
        }
        self.lives.insert(life, now);
        self.order.push_back((now, life));
    }
}

impl Entry {
    fn alive(&self) -> Result<(), Refusal> {
        if let Some(by) = self.superseded {
            return Err(Refusal::Superseded { by });
        }
        if self.dropped {
            return Err(Refusal::Expired);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::ServerInfo;
    use trefoil_sharder::Capacity;

    const LEASE: Duration = Duration::from_secs(3);
    const SERVING: MemberState = MemberState::Serving;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn record(id: u64, address: &str) -> MemberRecord {
        let capacity = Capacity { cpu: 1.0, bytes: 1 };
        MemberRecord {
            id: ServerId(id),
            life: id * 10,
            info: ServerInfo::new(address, capacity),
        }
    }

    fn table(members: &[(u64, &str)]) -> MemberTable {
        let members = members.iter().map(|&(id, at)| record(id, at)).collect();
        MemberTable::new(LeaseTerms::new(LEASE, at(0), None), at(0), members)
    }

    /// A server that does not reach the new leader may still hold a lease of
    /// the former one, whose leases were longer.
    #[test]
    fn a_longer_lease_of_a_predecessor_is_waited_for() {
        let terms = LeaseTerms::new(LEASE, at(0), Some(LEASE * 4));
        let mut table = MemberTable::new(terms, at(0), vec![record(1, "a:1")]);
        assert_eq!(table.expire(at(3_000)), []);
        assert_eq!(table.expire(at(11_999)), []);
        assert_eq!(table.expire(at(12_000)), [ServerId(1)]);
        // Newcomers have leases of this leader's.
        table
            .insert(at(12_000), at(12_000), record(2, "b:1"))
            .unwrap();
        table.remove(at(12_000), ServerId(1));
        assert_eq!(table.expire(at(14_999)), []);
        assert_eq!(table.expire(at(15_000)), [ServerId(2)]);
    }

    #[test]
    fn silence_for_a_whole_lease_is_the_end() {
        let mut table = table(&[(1, "a:1"), (2, "b:1")]);
        for now in [1_000, 2_000, 2_900] {
            let heard = table.keep_alive(at(now), ServerId(1), 10, SERVING);
            assert_eq!(heard, Ok(None));
        }
        assert_eq!(table.expire(at(2_999)), []);
        assert_eq!(table.expire(at(3_000)), [ServerId(2)]);
        assert_eq!(
            table.keep_alive(at(3_001), ServerId(2), 20, SERVING),
            Err(Refusal::Expired),
            "too late"
        );
        assert_eq!(table.members().len(), 2, "until it is struck off");
        assert_eq!(table.expire(at(3_100)), [ServerId(2)], "once more");
        table.remove(at(3_100), ServerId(2));
        assert_eq!(table.members().len(), 1);
        assert_eq!(
            table.keep_alive(at(3_200), ServerId(2), 20, SERVING),
            Err(Refusal::Unknown)
        );
        assert_eq!(
            table.admit(at(3_200), &record(2, "b:1"), true, false),
            Err(Refusal::Expired),
            "the id is used up"
        );
    }

    #[test]
    fn a_pause_of_the_assigner_is_nobodys_silence() {
        let mut table = table(&[(1, "a:1")]);
        table.stood_still(at(10_000));
        assert_eq!(table.expire(at(12_999)), []);
        assert_eq!(table.expire(at(13_000)), [ServerId(1)]);
    }

    /// One bad link of this assigner's, and every server is healthy.
    #[test]
    fn who_hears_nobody_strikes_nobody_off() {
        let mut table = table(&[(1, "a:1"), (2, "b:1"), (3, "c:1")]);
        for now in [1_000, 1_400] {
            for id in [1, 2] {
                let heard = table.keep_alive(at(now), ServerId(id), id * 10, SERVING);
                assert_eq!(heard, Ok(None));
            }
        }
        // The third one has died before that.
        assert_eq!(table.expire(at(60_000)), []);
        assert_eq!(
            table.keep_alive(at(60_000), ServerId(1), 10, SERVING),
            Ok(None)
        );
        assert_eq!(table.expire(at(60_100)), []);
        for now in [61_000, 61_500] {
            let heard = table.keep_alive(at(now), ServerId(2), 20, SERVING);
            assert_eq!(heard, Ok(None));
        }
        // Silent for 1.4 s before, and for 1.6 s since.
        assert_eq!(table.expire(at(61_599)), []);
        assert_eq!(table.expire(at(61_600)), [ServerId(3)]);
    }

    /// All have died: whoever comes in their place is heard, and they are not.
    #[test]
    fn who_comes_after_everybody_has_died_waits_for_one_lease() {
        let mut table = table(&[(1, "a:1"), (2, "b:1")]);
        assert_eq!(table.expire(at(60_000)), []);
        table
            .insert(at(60_000), at(60_000), record(3, "b:1"))
            .unwrap();
        assert_eq!(table.expire(at(60_000)), [ServerId(2)], "a new life of it");
        for now in [61_000, 62_000, 62_900] {
            let heard = table.keep_alive(at(now), ServerId(3), 30, SERVING);
            assert_eq!(heard, Ok(None));
        }
        assert_eq!(table.expire(at(62_999)), [ServerId(2)]);
        assert_eq!(table.expire(at(63_000)), [ServerId(1), ServerId(2)]);
    }

    #[test]
    fn a_new_life_ends_the_former_one_in_its_own_time() {
        let mut table = table(&[(1, "a:1")]);
        let reborn = record(2, "a:1");
        assert_eq!(
            table.admit(at(1_000), &reborn, false, false),
            Ok(Admission::Insert)
        );
        table.insert(at(1_000), at(1_000), reborn).unwrap();
        assert_eq!(
            table.keep_alive(at(1_100), ServerId(1), 10, SERVING),
            Err(Refusal::Superseded { by: ServerId(2) })
        );
        assert_eq!(
            table.admit(at(1_100), &record(1, "a:1"), true, false),
            Err(Refusal::Superseded { by: ServerId(2) })
        );
        assert_eq!(table.expire(at(2_900)), [], "its lease was granted");
        assert_eq!(table.expire(at(3_000)), [ServerId(1)]);
    }

    #[test]
    fn an_id_belongs_to_one_life() {
        let mut table = table(&[(1, "a:1")]);
        let other = MemberRecord {
            life: 99,
            ..record(1, "b:1")
        };
        let in_use = Refusal::IdInUse {
            address: "a:1".to_owned(),
        };
        assert_eq!(
            table.admit(at(1), &other, false, false),
            Err(in_use.clone())
        );
        assert_eq!(
            table.keep_alive(at(1), ServerId(1), 99, SERVING),
            Err(in_use)
        );
        assert!(!table.may_leave(ServerId(1), 99) && table.may_leave(ServerId(1), 10));
        // The same life asks once more: its answer was lost.
        assert_eq!(
            table.admit(at(1), &record(1, "a:1"), false, false),
            Ok(Admission::Known)
        );
    }

    #[test]
    fn a_changed_state_is_written_first() {
        let mut table = table(&[(1, "a:1")]);
        let draining = MemberState::Draining;
        let write = table
            .keep_alive(at(1), ServerId(1), 10, draining)
            .unwrap()
            .expect("it has changed");
        assert_eq!(write.info.state, draining);
        assert_eq!(table.members()[0].state, SERVING);
        table.update(at(1), write).unwrap();
        assert_eq!(table.members()[0].state, draining);
        assert_eq!(table.keep_alive(at(2), ServerId(1), 10, draining), Ok(None));
    }

    #[test]
    fn what_is_written_too_late_is_struck_off_again() {
        let mut table = table(&[(1, "a:1")]);
        let late = table
            .keep_alive(at(1), ServerId(1), 10, MemberState::Draining)
            .unwrap()
            .expect("it has changed");
        assert_eq!(table.expire(at(5_000)), [ServerId(1)]);
        assert_eq!(table.update(at(5_001), late.clone()), Err(Refusal::Expired));
        table.remove(at(5_001), ServerId(1));
        assert_eq!(table.update(at(5_002), late), Err(Refusal::Expired));
        assert_eq!(table.expire(at(5_003)), [ServerId(1)]);
    }

    #[test]
    fn a_store_that_has_forgotten_is_reminded() {
        let mut table = table(&[]);
        assert_eq!(
            table.admit(at(1), &record(7, "a:1"), true, true),
            Ok(Admission::Insert)
        );
    }

    /// The first attempt was in a socket's buffer; a later one was told that it is none, and it
    /// has joined under another id.
    #[test]
    fn a_registration_that_comes_late_ends_nobody() {
        let mut table = table(&[]);
        let (former, present) = (record(1, "a:1"), record(2, "a:1"));
        let expired = Err(Refusal::Expired);
        assert_eq!(table.admit(at(1), &former, true, false), expired);
        assert_eq!(
            table.admit(at(2), &present, false, false),
            Ok(Admission::Insert)
        );
        table.insert(at(3), at(2), present).unwrap();
        assert_eq!(table.admit(at(4), &former, false, false), expired);
        assert_eq!(table.keep_alive(at(5), ServerId(2), 20, SERVING), Ok(None));
        // Another life may have the id by chance.
        let other = MemberRecord {
            life: 11,
            ..record(1, "b:1")
        };
        assert_eq!(
            table.admit(at(6), &other, false, false),
            Ok(Admission::Insert)
        );
    }

    #[test]
    fn who_was_struck_off_or_has_left_is_remembered_for_a_while_and_not_too_many() {
        let mut table = table(&[(1, "a:1")]);
        table.remove(at(1), ServerId(1));
        table.has_left(at(1), ServerId(2), 20);
        // Each time that it is told so.
        let asked = [(60_000, true), (110_000, true), (170_000, false)];
        for (now, is_gone) in asked {
            for id in [1, 2] {
                let admitted = table.admit(at(now), &record(id, "a:1"), false, false);
                assert_eq!(admitted.is_err(), is_gone, "{id} at {now}: {admitted:?}");
            }
        }
        // A store that has forgotten is believed less than a map that somebody knows.
        table.has_left(at(170_000), ServerId(1), 10);
        let trusted = table.admit(at(170_000), &record(1, "a:1"), true, true);
        assert_eq!(trusted, Ok(Admission::Insert));
        let inserted = table.insert(at(170_001), at(170_000), record(1, "a:1"));
        assert_eq!(inserted, Ok(()));
        for id in 0..=GONE_MAX as u64 {
            table.has_left(at(200_000), ServerId(1_000 + id), 1);
        }
        assert_eq!(table.gone.order.len(), GONE_MAX);
        assert_eq!(table.gone.lives.len(), GONE_MAX);
    }

    /// The store took longer for the former life's record.
    #[test]
    fn who_asked_later_is_the_later_life_in_whatever_order_they_are_written() {
        let mut table = table(&[]);
        let superseded = Err(Refusal::Superseded { by: ServerId(2) });
        table.insert(at(20), at(10), record(2, "a:1")).unwrap();
        assert_eq!(
            table.insert(at(21), at(5), record(1, "a:1")),
            superseded.clone()
        );
        assert_eq!(table.keep_alive(at(22), ServerId(2), 20, SERVING), Ok(None));
        assert_eq!(
            table.admit(at(22), &record(1, "a:1"), true, false),
            superseded.map(|()| Admission::Known)
        );
    }

    #[test]
    fn who_leaves_while_it_is_written_is_struck_off() {
        let mut table = table(&[]);
        let admitted = table.admit(at(1), &record(1, "a:1"), false, false);
        assert_eq!(admitted, Ok(Admission::Insert));
        table.has_left(at(2), ServerId(1), 10);
        let written = table.insert(at(3), at(1), record(1, "a:1"));
        assert_eq!(written, Err(Refusal::Expired));
        assert_eq!(table.expire(at(4)), [ServerId(1)]);
    }
}
