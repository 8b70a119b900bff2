//! One shard's examination: what to ask next, and what came of its keys.
//!
//! Calling order: [`Examination::ask`] for each replica to which no question is under way,
//! [`Examination::answer`] or [`Examination::lose`] for each question, until
//! [`Examination::is_done`]. Where nothing is to be asked and nothing is under way, it
//! waits until [`Examination::wakes_at_ms`].

use super::plan::{Example, Keys, Moment, Plan, Question, Reply};
use super::seen::{self, Name, Seen, SeenKeys};
use super::verdict::{Copy, Verdict, judge};
use super::walk::{Reader, Walk, Window};
use crate::machine::Nonsense;
use crate::page::Page;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Looks at one key at most; one that is different each time is unsettled.
const LOOKS_MAX: u32 = 5;
/// Keys that wait for another look at most: then they have it.
const SUSPECT_COUNT_MAX: usize = 1 << 16;
/// Keys that are read along rather than asking twice.
const KEYS_ALONG: u64 = 16;
/// Clocks of hosts differ, and replicas drop an expired item each by its own: what
/// expires this soon is not judged.
const EXPIRY_MARGIN_MS: u64 = 10_000;

/// A key that was not clean when it was looked at.
#[derive(Debug)]
struct Suspect {
    copies: Vec<Copy>,
    looks: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// All keys, for the first time.
    Walk,
    /// Until then nothing is asked.
    Pause {
        until_ms: u64,
    },
    /// The suspects, once more.
    Again,
    /// The keys of examples, this one next.
    Names {
        at: usize,
    },
    Done,
}

/// See the module.
#[derive(Debug)]
pub struct Examination {
    plan: Plan,
    phase: Phase,
    readers: Vec<Reader>,
    first: Walk,
    again: Walk,
    suspects: BTreeMap<Name, Suspect>,
    keys: Keys,
    examples: Vec<Example>,
    /// Places of the first walk.
    place_count: u64,
    /// Keys that the first walk has met.
    key_count: u64,
}

impl Examination {
    /// Nothing is asked yet.
    ///
    /// # Panics
    /// If there are other numbers of copies than 1 to 3.
    pub fn new(plan: Plan) -> Self {
        assert!((1..=3).contains(&plan.copies), "one to three copies");
        let first = Walk::over(plan.places.iter().cloned());
        let place_count = first.left();
        let readers = (0..plan.copies).map(|_| Reader::default()).collect();
        let mut examination = Examination {
            plan,
            phase: Phase::Walk,
            readers,
            first,
            again: Walk::over([]),
            suspects: BTreeMap::new(),
            keys: Keys::default(),
            examples: Vec::new(),
            place_count,
            key_count: 0,
        };
        if place_count == 0 {
            examination.phase = Phase::Done;
        }
        examination
    }

    /// What to ask a replica now; `None` if one question is under way to it, or nothing
    /// is to be asked of it for the time being.
    pub fn ask(&mut self, replica: usize, now: Moment) -> Option<Question> {
        if let Phase::Pause { until_ms } = self.phase
            && now.monotonic_ms >= until_ms
        {
            self.look_again();
        }
        let question = self.next_question(replica)?;
        self.readers[replica].is_asked = true;
        Some(question)
    }

    fn next_question(&self, replica: usize) -> Option<Question> {
        let reader = &self.readers[replica];
        if reader.is_lost || reader.is_asked {
            return None;
        }
        let walk = match self.phase {
            Phase::Walk => &self.first,
            Phase::Again => &self.again,
            Phase::Names { at } => return self.name_question(at, replica),
            Phase::Pause { .. } | Phase::Done => return None,
        };
        if let Some(long) = reader.long.last() {
            let (key, version) = (long.key.clone(), long.version);
            return Some(Question::Long { key, version });
        }
        let places = walk.next_of(reader)?;
        Some(Question::Page {
            from: places.start,
            until: places.end,
            values: self.plan.values,
        })
    }

    /// A replica's answer to what it was asked last. An error says that it is not an
    /// answer: the replica is then to be given up.
    pub fn answer<D: AsRef<[u8]>>(
        &mut self,
        replica: usize,
        reply: Reply<D>,
        now: Moment,
    ) -> Result<(), Nonsense> {
        self.readers[replica].is_asked = false;
        match (self.phase, reply) {
            (Phase::Names { at }, Reply::Page(page)) => self.name(at, page)?,
            (Phase::Walk | Phase::Again, Reply::Page(page)) => self.read(replica, page)?,
            (Phase::Walk | Phase::Again, Reply::Long(data)) => self.read_long(replica, data),
            _ => return Err(Nonsense("an answer that nobody asked for")),
        }
        self.go_on(now);
        Ok(())
    }

    /// A replica is asked no more. What it has told and was not compared is dropped.
    pub fn lose(&mut self, replica: usize, now: Moment) {
        let reader = &mut self.readers[replica];
        reader.is_asked = false;
        reader.is_lost = true;
        reader.clear();
        self.go_on(now);
    }

    /// When it goes on by itself, in [`Moment::monotonic_ms`].
    pub fn wakes_at_ms(&self) -> Option<u64> {
        match self.phase {
            Phase::Pause { until_ms } => Some(until_ms),
            _ => None,
        }
    }

    /// Nothing is left to ask.
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// How much of the places was looked at for the first time, 0 to 1.
    pub fn fraction(&self) -> f64 {
        match self.place_count {
            0 => 1.0,
            count => (count - self.first.left()) as f64 / count as f64,
        }
    }

    /// What came of the keys. Those that wait for another look are not in it.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Keys that wait for another look.
    pub fn suspect_count(&self) -> u64 {
        self.suspects.len() as u64
    }

    /// Keys with a finding, some of each kind.
    pub fn examples(&self) -> &[Example] {
        &self.examples
    }

    fn read<D: AsRef<[u8]>>(&mut self, replica: usize, page: Page<D>) -> Result<(), Nonsense> {
        let walk = match self.phase {
            Phase::Again => &self.again,
            _ => &self.first,
        };
        let reader = &mut self.readers[replica];
        let places = walk.next_of(reader);
        let places = places.ok_or(Nonsense("an answer that nobody asked for"))?;
        if page.next <= places.start || page.next > places.end {
            return Err(Nonsense("a page that does not lead on"));
        }
        let (mut keys, mut long) = match self.plan.values {
            true => seen::of_items(&self.plan.hasher, page.items)?,
            false => {
                let held = page.held.into_iter();
                let seen = held.map(|(hash, version)| (Name::of(hash), Seen::entry(version)));
                (seen.collect::<SeenKeys>(), Vec::new())
            }
        };
        // What lies elsewhere comes with its own page.
        let told = places.start..page.next;
        keys.retain(|name, _| told.contains(&name.place()));
        long.retain(|long| told.contains(&long.name.place()));
        reader.read_to = page.next;
        reader.keys.append(&mut keys);
        reader.long = long;
        Ok(())
    }

    fn read_long<D: AsRef<[u8]>>(&mut self, replica: usize, data: Option<D>) {
        let reader = &mut self.readers[replica];
        let Some(wanted) = reader.long.last() else {
            return;
        };
        let (name, version) = (wanted.name, wanted.version);
        let found = data.map(|data| {
            let seen = Seen::of_data(&self.plan.hasher, version, data.as_ref());
            // Without its key it was damaged on the way, or lies there so.
            let seen = seen.filter(|(found, _)| *found == name);
            seen.map_or_else(
                || Seen {
                    copy: Copy::Corrupt { version },
                    expiry_ms: 0,
                    key: Some(wanted.key.as_slice().into()),
                },
                |(_, seen)| seen,
            )
        });
        reader.looked_up(found);
    }

    /// Compares what all have told, and turns to what comes next.
    fn go_on(&mut self, now: Moment) {
        loop {
            if self.readers.iter().all(|reader| reader.is_lost) {
                self.phase = Phase::Done;
            }
            match self.phase {
                Phase::Walk => {
                    if let Some(window) = self.first.advance(&mut self.readers) {
                        self.compare(&window);
                    }
                    let is_over = self.first.left() == 0;
                    if self.suspects.len() >= SUSPECT_COUNT_MAX
                        || is_over && !self.suspects.is_empty()
                    {
                        return self.pause(now);
                    }
                    if !is_over {
                        return;
                    }
                    self.phase = Phase::Names { at: 0 };
                }
                Phase::Again => {
                    if let Some(window) = self.again.advance(&mut self.readers) {
                        self.compare_again(&window, now);
                    }
                    if self.again.left() > 0 {
                        return;
                    }
                    if !self.suspects.is_empty() {
                        return self.pause(now);
                    }
                    self.readers.iter_mut().for_each(Reader::clear);
                    self.phase = Phase::Walk;
                    if self.first.left() > 0 {
                        return;
                    }
                }
                Phase::Names { at } if at == self.examples.len() => self.phase = Phase::Done,
                Phase::Names { at } => {
                    if self.asker_of(at).is_some() {
                        return;
                    }
                    self.phase = Phase::Names { at: at + 1 };
                }
                Phase::Pause { .. } | Phase::Done => return,
            }
        }
    }

    fn pause(&mut self, now: Moment) {
        let until_ms = now.monotonic_ms.saturating_add(self.plan.pause_ms);
        self.phase = Phase::Pause { until_ms };
    }

    /// Begins another walk, over the suspects. A key among few others is asked for
    /// together with them.
    fn look_again(&mut self) {
        let walked = self.place_count - self.first.left();
        let places_along = walked / self.key_count.max(1) * KEYS_ALONG;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for place in self.suspects.keys().map(|name| name.place()) {
            match ranges.last_mut() {
                Some(last) if place <= last.end.saturating_add(places_along) => {
                    last.end = place + 1;
                }
                _ => ranges.push(place..place + 1),
            }
        }
        self.again = Walk::over(ranges);
        self.readers.iter_mut().for_each(Reader::clear);
        self.phase = Phase::Again;
    }

    fn compare(&mut self, window: &Window) {
        let names: BTreeSet<Name> = window
            .told
            .iter()
            .flat_map(|told| told.keys().copied())
            .collect();
        for name in names {
            self.key_count += 1;
            let copies = self.copies(name, window);
            match judge(&copies) {
                Verdict::Nothing if self.is_whole(&copies) => {}
                Verdict::Clean if self.is_whole(&copies) => self.keys.clean += 1,
                Verdict::Short if self.is_whole(&copies) => self.keys.short += 1,
                _ => {
                    self.suspects.insert(name, Suspect { copies, looks: 1 });
                }
            }
        }
    }

    fn compare_again(&mut self, window: &Window, now: Moment) {
        let Some(first) = Name::first_at(window.places.start) else {
            return;
        };
        let suspects = self.suspects.range(first..).map(|(name, _)| *name);
        let told = suspects.take_while(|name| name.place() < window.places.end);
        let names: Vec<Name> = told.collect();
        for name in names {
            let copies = self.copies(name, window);
            let (verdict, is_whole) = (judge(&copies), self.is_whole(&copies));
            let Some(suspect) = self.suspects.get_mut(&name) else {
                continue;
            };
            let is_judged = match verdict {
                Verdict::Nothing | Verdict::Clean | Verdict::Short => is_whole,
                _ => is_whole && copies == suspect.copies && !expires_soon(name, window, now),
            };
            if is_judged {
                self.suspects.remove(&name);
                self.count(name, verdict, copies, window);
                continue;
            }
            suspect.copies = copies;
            suspect.looks += 1;
            if suspect.looks == LOOKS_MAX {
                self.suspects.remove(&name);
                self.keys.unsettled += 1;
            }
        }
    }

    fn count(&mut self, name: Name, verdict: Verdict, copies: Vec<Copy>, window: &Window) {
        let keys = &mut self.keys;
        match verdict {
            Verdict::Nothing => return,
            Verdict::Clean => {
                keys.clean += 1;
                return;
            }
            Verdict::Short => {
                keys.short += 1;
                return;
            }
            Verdict::Dirty { replica, how } => *keys.dirty.entry((replica, how)).or_default() += 1,
            Verdict::Inquorate => keys.inquorate += 1,
            Verdict::Corrupt => {
                keys.corrupt += 1;
                for (count, copy) in keys.corrupt_copies.iter_mut().zip(&copies) {
                    *count += u64::from(matches!(copy, Copy::Corrupt { .. }));
                }
            }
        }
        let kind = std::mem::discriminant(&verdict);
        let same = |example: &&Example| std::mem::discriminant(&example.verdict) == kind;
        if self.examples.iter().filter(same).count() < self.plan.example_count {
            let mut told = window.told.iter().filter_map(|told| told.get(&name));
            let key = told.find_map(|seen| seen.key.clone());
            let hash = name.hash();
            self.examples.push(Example {
                verdict,
                hash,
                key,
                copies,
            });
        }
    }

    /// What each replica has told of a key.
    fn copies(&self, name: Name, window: &Window) -> Vec<Copy> {
        let readers = self.readers.iter().zip(&window.told);
        let copy = |(reader, told): (&Reader, &SeenKeys)| match told.get(&name) {
            _ if reader.is_lost => Copy::Unread,
            Some(seen) => seen.copy,
            None => Copy::Absent,
        };
        readers.map(copy).collect()
    }

    /// Whether everybody who is still asked has told.
    fn is_whole(&self, copies: &[Copy]) -> bool {
        let mut readers = self.readers.iter().zip(copies);
        readers.all(|(reader, copy)| reader.is_lost || *copy != Copy::Unread)
    }

    /// Who is asked for the key of an example, if it is not known and somebody holds it.
    fn asker_of(&self, at: usize) -> Option<usize> {
        let example = self.examples.get(at)?;
        let holds = |replica: &usize| {
            !self.readers[*replica].is_lost && example.copies[*replica].version().is_some()
        };
        match example.key {
            None => (0..self.readers.len()).find(holds),
            Some(_) => None,
        }
    }

    fn name_question(&self, at: usize, replica: usize) -> Option<Question> {
        if self.asker_of(at) != Some(replica) {
            return None;
        }
        let from = Name::of(self.examples[at].hash).place();
        Some(Question::Page {
            from,
            until: from + 1,
            values: true,
        })
    }

    fn name<D: AsRef<[u8]>>(&mut self, at: usize, page: Page<D>) -> Result<(), Nonsense> {
        let (keys, _) = seen::of_items(&self.plan.hasher, page.items)?;
        if let Some(example) = self.examples.get_mut(at) {
            let found = keys.get(&Name::of(example.hash));
            example.key = found.and_then(|seen| seen.key.clone());
        }
        self.phase = Phase::Names { at: at + 1 };
        Ok(())
    }
}

fn expires_soon(name: Name, window: &Window, now: Moment) -> bool {
    let mut told = window.told.iter().filter_map(|told| told.get(&name));
    told.any(|seen| seen.expiry_ms != 0 && seen.expiry_ms <= now.unix_ms + EXPIRY_MARGIN_MS)
}
