//! What goes wrong, by a seed.
//!
//! Two go on at a time. *Away* takes a server's memory or its membership: one at a time,
//! and the next one begins when every slice has its copies again, since that is what two
//! copies are promised for. *Beside* it links break and the assigner dies: that may cost
//! time, and nothing else. A rift takes nobody's membership; it has its turn with those
//! that do, since what is asked of the others meanwhile is asked while all are there.

use super::clients::{Client, Notes, Shared};
use crate::Failure;
use crate::fleet::{Assigner, End, Fleet, Form, Link, Links, assigner_flags};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Longer than anything takes to be whole again that will be at all.
const WHOLE_WITHIN: Duration = Duration::from_secs(60);
/// A drain that others have to make room for is waited for so long before they are told.
const DRAIN_WITHIN: Duration = Duration::from_secs(4);

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// kill -9 of a server, and another process in its place.
    Kill,
    /// SIGSTOP for less than a lease.
    StopShort,
    /// SIGSTOP for longer than a lease.
    StopLong,
    /// SIGTERM: everything moves away; another process takes the place.
    Drain,
    /// A release in a server's place that the others do not understand, nor it them.
    Deploy,
    /// Nothing comes through between a server and the assigner, for longer than a lease.
    Lonely,
    /// Nothing comes through between two servers until every key was changed.
    Rift,
    /// A link between two servers is cut, again and again.
    Cut,
    /// Nothing comes through between two servers.
    Hole,
    /// kill -9 of the assigner, which is started again.
    AssignerKill,
    /// Nothing comes through between a server and the assigner, for less than a lease.
    LonelyShort,
}

impl Fault {
    const AWAY: [Fault; 7] = [
        Fault::Kill,
        Fault::StopShort,
        Fault::StopLong,
        Fault::Drain,
        Fault::Deploy,
        Fault::Lonely,
        Fault::Rift,
    ];
    const BESIDE: [Fault; 4] = [
        Fault::Cut,
        Fault::Hole,
        Fault::AssignerKill,
        Fault::LonelyShort,
    ];

    pub(crate) fn all() -> Vec<Fault> {
        [&Fault::AWAY[..], &Fault::BESIDE[..]].concat()
    }

    fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::StopShort => "stop-short",
            Fault::StopLong => "stop-long",
            Fault::Drain => "drain",
            Fault::Deploy => "deploy",
            Fault::Lonely => "lonely",
            Fault::Rift => "rift",
            Fault::Cut => "cut",
            Fault::Hole => "hole",
            Fault::AssignerKill => "assigner-kill",
            Fault::LonelyShort => "lonely-short",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = Fault::all();
        let found = all.iter().find(|fault| fault.name() == text).copied();
        found.ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|fault| fault.name()).collect();
            format!("no fault is called {text}; there are {}", names.join(", "))
        })
    }
}

/// How often each was done.
pub(crate) type Counts = BTreeMap<Fault, u64>;

/// Faults in the order of their turns: each of them before any comes again.
struct Turns {
    faults: Vec<Fault>,
    left: Vec<Fault>,
}

impl Turns {
    fn of(wished: &[Fault], kind: &[Fault]) -> Self {
        let faults = kind.iter().copied();
        Turns {
            faults: faults.filter(|fault| wished.contains(fault)).collect(),
            left: Vec::new(),
        }
    }

    fn next(&mut self, rng: &mut SmallRng) -> Option<Fault> {
        if self.left.is_empty() {
            self.left.clone_from(&self.faults);
            self.left.shuffle(rng);
        }
        self.left.pop()
    }
}

/// What faults have done, and what came of servers.
pub(crate) struct Done {
    pub(crate) fleet: Fleet,
    pub(crate) counts: Counts,
    /// Values that a server of another form refused while it was there.
    pub(crate) refused_by_form: u64,
    pub(crate) notes: Notes,
}

pub(crate) struct Away {
    pub(crate) fleet: Fleet,
    /// Who changes every key when a fault is over.
    pub(crate) clients: Vec<Client>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) lease: Duration,
    pub(crate) is_verbose: bool,
}

impl Away {
    /// Does one after the other until the trial is over; then everything is mended.
    pub(crate) async fn run(mut self, wished: &[Fault], seed: u64) -> Result<Done, Failure> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut turns = Turns::of(wished, &Fault::AWAY);
        let mut counts = Counts::new();
        let mut refused_by_form = 0;
        while !self.shared.is_over.load(Ordering::Relaxed) {
            let Some(fault) = turns.next(&mut rng) else {
                sleep(Duration::from_millis(100)).await;
                continue;
            };
            sleep(Duration::from_millis(rng.random_range(100..1_000))).await;
            let at = rng.random_range(0..self.fleet.len());
            self.tell(&format!("{fault} of server {at}"));
            let done = self.one(fault, at, &mut rng).await;
            refused_by_form += done.map_err(|error| format!("{fault} of server {at}: {error}"))?;
            *counts.entry(fault).or_default() += 1;
            self.is_whole()
                .await
                .map_err(|error| format!("after {fault} of server {at}: {error}"))?;
            let ended = self.fleet.ended();
            if !ended.is_empty() {
                return Err(format!("servers {ended:?} have ended by themselves").into());
            }
        }
        let mut notes = Notes::default();
        for client in self.clients {
            notes.add(client.notes);
        }
        Ok(Done {
            fleet: self.fleet,
            counts,
            refused_by_form,
            notes,
        })
    }

    fn tell(&self, what: &str) {
        if self.is_verbose {
            eprintln!(
                "{:7.2} s  {what}",
                self.shared.began.elapsed().as_secs_f64()
            );
        }
    }

    /// Until every slice has its copies again, and a change of every key was acknowledged
    /// since: then as many servers have it as are promised.
    async fn is_whole(&mut self) -> Result<(), Failure> {
        self.fleet.is_whole(WHOLE_WITHIN).await?;
        self.tell("every slice has its servers");
        self.change_every_key().await?;
        self.tell("and every key its copies");
        Ok(())
    }

    /// Until a change of every key was acknowledged.
    async fn change_every_key(&mut self) -> Result<(), Failure> {
        let keys: Vec<u32> = {
            let round = self.shared.round.load(Ordering::Relaxed);
            self.shared.keys.of_round(round).collect()
        };
        let share = keys.len().div_ceil(self.clients.len()).max(1);
        let parts = keys.chunks(share).map(<[u32]>::to_vec);
        let mut touching = Vec::new();
        for (part, mut client) in parts.zip(self.clients.drain(..)) {
            touching.push(tokio::spawn(async move {
                for key in part {
                    client.append(key).await;
                }
                client
            }));
        }
        for touched in touching {
            let touched = timeout(WHOLE_WITHIN, touched).await;
            let touched =
                touched.map_err(|_| format!("some key cannot be changed for {WHOLE_WITHIN:?}"))?;
            self.clients.push(touched?);
        }
        Ok(())
    }

    /// How many values were refused for their form.
    async fn one(&mut self, fault: Fault, at: usize, rng: &mut SmallRng) -> Result<u64, Failure> {
        let lease = self.lease;
        match fault {
            Fault::Kill => {
                self.fleet.kill(at).await?;
                // At once, before anybody knows that it is dead, or after.
                sleep(lease.mul_f64(rng.random_range(0.0..2.0))).await;
                self.fleet
                    .begin(at, Form::OLD, rng.random_bool(0.5))
                    .await?;
            }
            Fault::StopShort => {
                self.stop(at, lease.mul_f64(rng.random_range(0.1..0.6)))
                    .await?
            }
            Fault::StopLong => {
                self.stop(at, lease.mul_f64(rng.random_range(1.3..2.0)))
                    .await?
            }
            Fault::Drain => {
                self.replace(at, Form::OLD, rng.random_bool(0.5)).await?;
            }
            Fault::Deploy => return self.deploy(at, rng).await,
            Fault::Lonely => {
                let links = self.fleet.links.clone();
                links.set(End::Server(at), End::Assigner, Link::Hole);
                sleep(lease.mul_f64(rng.random_range(1.3..2.0))).await;
                links.set(End::Server(at), End::Assigner, Link::Open);
            }
            Fault::Rift => {
                let links = self.fleet.links.clone();
                let servers = self.fleet.len();
                let other = (at + rng.random_range(1..servers)) % servers;
                self.tell(&format!("it does not reach server {other}"));
                links.set(End::Server(at), End::Server(other), Link::Hole);
                sleep(lease.mul_f64(rng.random_range(0.0..1.0))).await;
                let changed = self.change_every_key().await;
                links.set(End::Server(at), End::Server(other), Link::Open);
                changed?;
            }
            Fault::Cut | Fault::Hole | Fault::AssignerKill | Fault::LonelyShort => {}
        }
        Ok(0)
    }

    async fn stop(&mut self, at: usize, time: Duration) -> Result<(), Failure> {
        let from_ns = self.shared.now_ns();
        // Until it is known when it goes on.
        self.shared.stops().push((from_ns, u64::MAX));
        self.fleet.stop(at).await?;
        sleep(time).await;
        self.fleet.go_on(at)?;
        // What had arrived there is answered a moment later.
        let to_ns = self.shared.now_ns() + 1_000_000_000;
        if let Some(last) = self.shared.stops().last_mut() {
            last.1 = to_ns;
        }
        Ok(())
    }

    /// Has it leave, and another one begin.
    async fn replace(&mut self, at: usize, form: Form, is_moved: bool) -> Result<(), Failure> {
        self.fleet.leave(at)?;
        if !self.fleet.has_left(at, WHOLE_WITHIN).await? {
            return Err(format!("it has not given everything away after {WHOLE_WITHIN:?}").into());
        }
        self.fleet.begin(at, form, is_moved).await
    }

    /// A rolling deployment of a release that speaks another form of values, which is found
    /// out at its first server; and the one that mends it.
    async fn deploy(&mut self, at: usize, rng: &mut SmallRng) -> Result<u64, Failure> {
        let before = self.refused().await;
        self.replace(at, Form::NEW, rng.random_bool(0.5)).await?;
        sleep(Duration::from_millis(rng.random_range(1_500..4_000))).await;
        let refused = self.refused().await.saturating_sub(before);
        self.tell(&format!("{refused} values refused for their form"));
        // Rolled back. What it has written, nobody else may be able to read.
        self.fleet.leave(at)?;
        let mut has_left = self.fleet.has_left(at, DRAIN_WITHIN).await?;
        let others: Vec<usize> = (0..self.fleet.len()).filter(|other| *other != at).collect();
        for other in others {
            if has_left {
                break;
            }
            self.tell(&format!(
                "server {at} waits for somebody who reads its values: {other}"
            ));
            self.replace(other, Form::BOTH, false).await?;
            has_left = self.fleet.has_left(at, DRAIN_WITHIN).await?;
        }
        if !has_left && !self.fleet.has_left(at, WHOLE_WITHIN).await? {
            return Err("nobody takes the values of the release that was rolled back".into());
        }
        self.fleet.begin(at, Form::OLD, false).await?;
        Ok(refused)
    }

    async fn refused(&self) -> u64 {
        let mut refused = 0;
        for at in 0..self.fleet.len() {
            if let Some(state) = self.fleet.state(at).await {
                refused += state.copies_refused + state.moves_refused;
            }
        }
        refused
    }
}

/// Breaks links and the assigner until the trial is over.
pub(crate) async fn beside(
    links: Links,
    mut assigner: Assigner,
    shared: Arc<Shared>,
    lease: Duration,
    servers: usize,
    wished: Vec<Fault>,
    seed: u64,
) -> Result<(Assigner, Counts), Failure> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut turns = Turns::of(&wished, &Fault::BESIDE);
    let mut counts = Counts::new();
    while !shared.is_over.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(rng.random_range(200..2_000))).await;
        let Some(fault) = turns.next(&mut rng) else {
            continue;
        };
        let one = rng.random_range(0..servers);
        let other = (one + rng.random_range(1..servers)) % servers;
        let (one, other) = (End::Server(one), End::Server(other));
        match fault {
            Fault::Cut => {
                for _ in 0..rng.random_range(1..4) {
                    links.set(one, other, Link::Cut);
                    sleep(Duration::from_millis(rng.random_range(1..400))).await;
                    links.set(one, other, Link::Open);
                    sleep(Duration::from_millis(rng.random_range(1..200))).await;
                }
            }
            Fault::Hole => {
                links.set(one, other, Link::Hole);
                sleep(lease.mul_f64(rng.random_range(0.1..1.5))).await;
                links.set(one, other, Link::Open);
            }
            Fault::AssignerKill => {
                assigner.kill().await?;
                sleep(lease.mul_f64(rng.random_range(0.0..1.5))).await;
                assigner.start(&assigner_flags(lease)).await?;
            }
            Fault::LonelyShort => {
                links.set(one, End::Assigner, Link::Hole);
                sleep(lease.mul_f64(rng.random_range(0.1..0.5))).await;
                links.set(one, End::Assigner, Link::Open);
            }
            _ => continue,
        }
        *counts.entry(fault).or_default() += 1;
    }
    links.open_all();
    Ok((assigner, counts))
}
