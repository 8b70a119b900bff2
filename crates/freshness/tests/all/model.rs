//! The table's rules against a model of database, relay, cache and loads in
//! every order that chance finds: nothing out of date is ever kept.
//!
//! The database has a few keys whose values are the positions of their last
//! commits. Commits become visible in another order than they are in the log,
//! the stream runs ahead of that, is interrupted inside of transactions, and
//! tells things twice.

use bytes::Bytes;
use proptest::prelude::*;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use trefoil_freshness::{
    FillToken, FreshTable, Gap, GapReason, History, Place, Progress, Scope, Stamp, Sweep, Verdict,
};

const KEYS: u64 = 3;

/// Something that happens.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A transaction writes these keys (bits) and is in the log.
    Commit {
        keys: u8,
        refresh: bool,
    },
    /// The oldest or newest commit that is not visible becomes so.
    Show {
        newest: bool,
    },
    /// The stream tells one more change.
    Tell,
    /// The relay notices what is visible.
    Progress,
    /// A load takes its token; or one reads; or one stores.
    Begin {
        key: u8,
    },
    Read {
        load: u8,
    },
    Store {
        load: u8,
    },
    /// The stream breaks and goes on where the table is.
    Resume,
    /// The stream breaks and goes on with what comes next.
    Lose,
    /// The database fails over: positions begin anew.
    FailOver,
    /// Keys of one prefix are emptied by a truncate.
    Truncate,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..8_u8, any::<bool>()).prop_map(|(keys, refresh)| Step::Commit { keys, refresh }),
        6 => any::<bool>().prop_map(|newest| Step::Show { newest }),
        8 => Just(Step::Tell),
        4 => Just(Step::Progress),
        6 => (0..KEYS as u8).prop_map(|key| Step::Begin { key }),
        6 => (0..4_u8).prop_map(|load| Step::Read { load }),
        6 => (0..4_u8).prop_map(|load| Step::Store { load }),
        2 => Just(Step::Resume),
        1 => Just(Step::Lose),
        1 => Just(Step::FailOver),
        1 => Just(Step::Truncate),
    ]
}

/// A commit: its position, what it wrote, whether readers see it.
#[derive(Clone, Debug)]
struct Commit {
    position: u64,
    keys: Vec<u64>,
    refresh: bool,
    truncate: bool,
    visible: bool,
}

#[derive(Clone, Copy)]
struct Load {
    key: u64,
    token: FillToken,
    read: Option<u64>,
}

/// Which of the rules are kept: the model has to find what goes wrong without
/// them.
#[derive(Clone, Copy, PartialEq)]
enum Rules {
    All,
    /// Progress is told as soon as a commit is told.
    ProgressBeforeVisible,
    /// A token is taken after the read instead of before it.
    TokenAfterRead,
    /// A resumed stream skips a commit and says nothing.
    SilentLoss,
}

struct Model {
    rules: Rules,
    table: FreshTable,
    kept: HashMap<u64, (u64, Stamp)>,
    commits: Vec<Commit>,
    history: u64,
    /// Commits up to here are told, and how many keys of the next.
    told: usize,
    told_keys: usize,
    loads: Vec<Load>,
    now: Instant,
}

impl Model {
    fn new(rules: Rules) -> Self {
        let mut model = Model {
            rules,
            // Two slots for three keys: sharing happens.
            table: FreshTable::new(2),
            kept: HashMap::new(),
            commits: Vec::new(),
            history: 0,
            told: 0,
            told_keys: 0,
            loads: Vec::new(),
            now: Instant::now(),
        };
        model.begin(0);
        model.table.progress(Progress {
            position: 0,
            as_of: None,
        });
        model
    }

    fn place(&self, position: u64) -> Place {
        let history = History(format!("history {}", self.history));
        Place { history, position }
    }

    fn begin(&mut self, position: u64) {
        let place = self.place(position);
        let sweep = self.table.begun(&place);
        self.sweep(sweep);
    }

    fn sweep(&mut self, sweep: Sweep) {
        if let Sweep::Drop { scope, before } = sweep {
            let covers = |key: &u64| scope.covers(&[*key as u8]);
            self.kept
                .retain(|key, (_, stamp)| stamp.position >= before || !covers(key));
        }
    }

    /// What a reader sees of a key: the last visible commit that wrote it.
    fn visible(&self, key: u64) -> u64 {
        let seen = self.commits.iter().filter(|commit| commit.visible);
        let wrote = seen.filter(|commit| commit.keys.contains(&key));
        wrote.map(|commit| commit.position).max().unwrap_or(0)
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        self.now += Duration::from_millis(1);
        match step {
            Step::Commit { keys, refresh } => {
                let keys = (0..KEYS).filter(|key| keys >> key & 1 == 1).collect();
                self.commit(keys, refresh, false);
            }
            // Keys 0 and 1 have the emptied prefix.
            Step::Truncate => self.commit(vec![0, 1], false, true),
            Step::Show { newest } => {
                let mut hidden = self.commits.iter_mut().filter(|commit| !commit.visible);
                let shown = if newest {
                    hidden.next_back()
                } else {
                    hidden.next()
                };
                if let Some(commit) = shown {
                    commit.visible = true;
                }
            }
            Step::Tell => self.tell(),
            Step::Progress => self.progress(),
            Step::Begin { key } => {
                if self.loads.len() < 4 {
                    let token = self.table.token();
                    let (key, read) = (u64::from(key), None);
                    self.loads.push(Load { key, token, read });
                }
            }
            Step::Read { load } => {
                if let Some(&Load { key, .. }) = self.loads.get(usize::from(load)) {
                    let read = self.visible(key);
                    let token = self.table.token();
                    let load = &mut self.loads[usize::from(load)];
                    if load.read.is_none() {
                        load.read = Some(read);
                    } else if self.rules == Rules::TokenAfterRead {
                        load.token = token;
                    }
                }
            }
            Step::Store { load } => self.store(usize::from(load)),
            Step::Resume => {
                // What was told of an unfinished transaction comes again, and
                // so does everything after the table's progress.
                let position = self.table.position();
                let after = |commit: &Commit| commit.position <= position;
                self.told = self.commits.iter().take_while(|c| after(c)).count();
                self.told_keys = 0;
                if self.rules == Rules::SilentLoss {
                    self.told = self.commits.len();
                }
                self.begin(position);
            }
            Step::Lose => {
                // Goes on at a place whose commits are all visible.
                let visible = self.commits.iter().take_while(|commit| commit.visible);
                self.told = self.told.max(visible.count());
                if self
                    .commits
                    .iter()
                    .take(self.told)
                    .all(|commit| commit.visible)
                {
                    self.told_keys = 0;
                    let last = self.commits.iter().take(self.told).next_back();
                    let position = last.map_or(0, |commit| commit.position);
                    let place = self.place(position);
                    let sweep = self.table.gap(&Gap {
                        from: self.table.position(),
                        to: place,
                        reason: GapReason::SlotLost,
                        tables: Vec::new(),
                        scope: Scope::All,
                    });
                    self.sweep(sweep);
                    self.begin(position);
                }
            }
            Step::FailOver => {
                // What was not visible is lost; positions begin anew, lower.
                self.commits.retain(|commit| commit.visible);
                self.history += 1;
                let mut position = 0;
                for commit in &mut self.commits {
                    position += 1;
                    commit.position = position;
                }
                self.told = self.commits.len();
                self.told_keys = 0;
                self.begin(position);
            }
        }
        self.check()
    }

    fn commit(&mut self, keys: Vec<u64>, refresh: bool, truncate: bool) {
        let last = self.commits.last().map_or(0, |commit| commit.position);
        self.commits.push(Commit {
            position: last + 2,
            keys,
            refresh,
            truncate,
            visible: false,
        });
    }

    /// Tells the next key of the next commit.
    fn tell(&mut self) {
        let Some(commit) = self.commits.get(self.told).cloned() else {
            return;
        };
        let position = commit.position;
        if commit.truncate {
            let sweep = self.table.gap(&Gap {
                from: 0,
                to: self.place(position),
                reason: GapReason::Truncated,
                tables: vec!["t".into()],
                scope: Scope::Prefixes(vec![Bytes::from_static(&[0]), Bytes::from_static(&[1])]),
            });
            self.sweep(sweep);
            self.told_keys = commit.keys.len();
        } else if let Some(&key) = commit.keys.get(self.told_keys) {
            let kept = self.kept.get(&key).map(|(_, stamp)| *stamp);
            let verdict = match commit.refresh {
                true => self.table.refresh(key, position, kept),
                false => self.table.invalidate(key, position),
            };
            match verdict {
                Verdict::Keep => {}
                Verdict::Drop => drop(self.kept.remove(&key)),
                // Also where nothing was kept: an owner may store it.
                Verdict::Replace(stamp) => drop(self.kept.insert(key, (position, stamp))),
            }
            self.told_keys += 1;
        }
        if self.told_keys >= commit.keys.len() {
            self.told += 1;
            self.told_keys = 0;
        }
    }

    /// Tells progress, as far as all commits are told and visible.
    fn progress(&mut self) {
        let told = self.commits.iter().take(self.told);
        let seen =
            told.take_while(|commit| commit.visible || self.rules == Rules::ProgressBeforeVisible);
        if let Some(last) = seen.last() {
            // A heartbeat that came right after the last commit of all.
            let all = last.position == self.commits.last().map_or(0, |commit| commit.position);
            self.table.progress(Progress {
                position: last.position,
                as_of: all.then_some(self.now),
            });
        }
    }

    fn store(&mut self, at: usize) {
        let Some(Load {
            key,
            token,
            read: Some(read),
        }) = self.loads.get(at).copied()
        else {
            return;
        };
        self.loads.remove(at);
        if let Ok(stamp) = self.table.admit(key, token, self.now) {
            self.kept.insert(key, (read, stamp));
        }
    }

    /// Every kept value contains every commit of its key up to the progress.
    fn check(&self) -> Result<(), String> {
        for (key, (value, stamp)) in &self.kept {
            let wrote = self
                .commits
                .iter()
                .filter(|commit| commit.keys.contains(key));
            let told = wrote.filter(|commit| {
                commit.position <= self.table.position() || commit.position <= stamp.position
            });
            let newest = told.map(|commit| commit.position).max().unwrap_or(0);
            // Values of an earlier history are numbered by it.
            if *value < newest {
                return Err(format!("key {key} is {value}, but {newest} was told"));
            }
        }
        Ok(())
    }

    /// Lets everything be seen and told; then all that is kept is right.
    fn finish(&mut self) -> Result<(), String> {
        for commit in &mut self.commits {
            commit.visible = true;
        }
        while self.told < self.commits.len() {
            self.tell();
        }
        self.progress();
        for load in (0..self.loads.len()).rev() {
            self.store(load);
        }
        for (&key, (value, _)) in &self.kept {
            if *value != self.visible(key) {
                return Err(format!("key {key} is out of date for ever"));
            }
        }
        Ok(())
    }
}

fn run(rules: Rules, steps: &[Step]) -> Result<Model, String> {
    let mut model = Model::new(rules);
    for step in steps {
        model.step(*step)?;
    }
    model.finish()?;
    Ok(model)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_out_of_date_is_kept(steps in prop::collection::vec(step(), 1..60)) {
        let ran = run(Rules::All, &steps);
        prop_assert!(ran.is_ok(), "{:?}", ran.err());
    }
}

/// Whether chance finds what goes wrong without a rule.
fn breaks(rules: Rules) -> bool {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let steps = prop::collection::vec(step(), 1..60);
    (0..20_000).any(|_| {
        let steps = steps.new_tree(&mut runner).expect("steps").current();
        run(rules, &steps).is_err()
    })
}

#[test]
fn every_rule_is_needed() {
    let needed = [
        Rules::ProgressBeforeVisible,
        Rules::TokenAfterRead,
        Rules::SilentLoss,
    ]
    .map(breaks);
    let fine = breaks(Rules::All);
    assert_eq!((needed, fine), ([true; 3], false));
}

#[test]
fn values_are_kept_at_all() {
    let steps = [
        Step::Commit {
            keys: 7,
            refresh: false,
        },
        Step::Show { newest: true },
        Step::Tell,
        Step::Tell,
        Step::Tell,
        Step::Progress,
        Step::Begin { key: 0 },
        Step::Read { load: 0 },
        Step::Store { load: 0 },
        Step::Commit {
            keys: 1,
            refresh: true,
        },
        Step::Show { newest: true },
        Step::Tell,
        Step::Progress,
    ];
    let kept = |steps: &[Step]| run(Rules::All, steps).map(|model| model.kept.len());
    // A refresh soon after a load drops what the load brought: it may be newer.
    assert_eq!(kept(&steps[..9]), Ok(1));
    assert_eq!(kept(&steps), Ok(0));
    // Once the stream has caught up with the load, it takes its place.
    let caught_up = [&steps[..9], &[Step::Progress], &steps[9..]].concat();
    assert_eq!(kept(&caught_up), Ok(1));
}
