//! Planned maintenance: backends move to other processes, one after the other, and the
//! next only when the cell is whole again.

use crate::cell::order_error::OrderError;
use crate::cell::orders::{Event, Order, Ordered};
use crate::cell::program::{Begins, Program, Starter};
use crate::cell::revival::Backend;
use crate::cell::room::{self, Held};
use crate::cell::spares::Spares;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use trefoil_cell::Mode;
use trefoil_client::{Cell, Tls};

/// How long the cell may take to be whole again after a step.
const HEALTH_PATIENCE: Duration = Duration::from_secs(300);
/// How often it is looked at meanwhile.
const HEALTH_PAUSE: Duration = Duration::from_millis(100);
/// What an order does that is given again: those that have moved run the program already.
const UPGRADE_AGAIN: &str = ": it goes on where it stopped";

/// What of the cell maintenance needs.
pub(super) struct Ground<'g> {
    pub(super) starter: &'g Arc<Starter>,
    pub(super) address: &'g str,
    pub(super) mode: Mode,
    pub(super) memory: u64,
    pub(super) backends: &'g mut [Backend],
    pub(super) spares: &'g mut Spares,
    /// Backends that have moved to spares: their former processes' places are empty.
    pub(super) drained: &'g mut BTreeSet<u32>,
}

impl Ground<'_> {
    /// One of those that run here.
    fn backend_mut(&mut self, number: u32) -> Result<&mut Backend, OrderError> {
        let mut backends = self.backends.iter_mut();
        let backend = backends.find(|backend| backend.number() == number);
        backend.ok_or(OrderError::NotRunning(number))
    }
}

/// An order that is being carried out.
pub(super) struct Plan {
    events: mpsc::Sender<Event>,
    steps: VecDeque<Step>,
    /// What the same order does if it is given again.
    again: &'static str,
    /// Whether a backend moves even where there is no room for it twice.
    without_room: bool,
    at: At,
}

struct Step {
    number: u32,
    program: Arc<Program>,
    to_spare: bool,
    /// By whoever gave the order, and not because it is one of all.
    is_named: bool,
}

enum At {
    /// The cell is looked at before the next step.
    Health {
        since: Instant,
        looks: Option<JoinHandle<Result<Held, String>>>,
        again: Instant,
    },
    /// A backend moves.
    Moves { step: Step, since: Instant },
}

impl Plan {
    /// Of an order; nothing if it cannot be carried out, or was at once. Whoever gave it is
    /// told.
    pub(super) async fn of(ordered: Ordered, ground: &mut Ground<'_>) -> Option<Plan> {
        let (order, events) = ordered;
        let again = match order {
            Order::Upgrade { .. } => UPGRADE_AGAIN,
            _ => "",
        };
        let without_room = match order {
            Order::Restart { without_room, .. }
            | Order::Upgrade { without_room, .. }
            | Order::Drain { without_room, .. } => without_room,
            _ => false,
        };
        match steps(order, ground).await {
            Ok(Steps::Moves(steps)) => Some(Plan {
                events,
                steps,
                again,
                without_room,
                at: health(Instant::now()),
            }),
            Ok(Steps::Done(event)) => {
                let _ = events.send(event).await;
                let _ = events.send(Event::of("done")).await;
                None
            }
            Err(error) => {
                let _ = events.send(Event::failed(&error)).await;
                None
            }
        }
    }

    /// Whether a spare is about to take a backend over.
    pub(super) fn has_spare(&self) -> bool {
        matches!(&self.at, At::Moves { step, .. } if step.to_spare)
    }

    /// Goes on with what can go on; `false` at the end.
    pub(super) async fn goes_on(&mut self, now: Instant, ground: &mut Ground<'_>) -> bool {
        match self.turn(now, ground).await {
            Ok(true) => true,
            Ok(false) => {
                let _ = self.events.send(Event::of("done")).await;
                false
            }
            Err(error) => {
                tracing::error!(why = %error, "maintenance has stopped");
                let _ = self.events.send(Event::failed(&error)).await;
                false
            }
        }
    }

    async fn turn(&mut self, now: Instant, ground: &mut Ground<'_>) -> Result<bool, OrderError> {
        match &mut self.at {
            At::Health {
                since,
                looks,
                again,
            } => {
                let Some(look) = looks else {
                    if now >= *again {
                        let tls = ground.starter.home.tls().cloned();
                        *looks = Some(look_at(ground.address.to_owned(), tls));
                    }
                    return Ok(true);
                };
                if !look.is_finished() {
                    return Ok(true);
                }
                let seen = look.await.unwrap_or_else(|error| Err(error.to_string()));
                let held = match seen {
                    Ok(held) => held,
                    Err(why) => {
                        if now.saturating_duration_since(*since) >= HEALTH_PATIENCE {
                            let then = self.again;
                            return Err(OrderError::NotWhole { why, then });
                        }
                        (*looks, *again) = (None, now + HEALTH_PAUSE);
                        return Ok(true);
                    }
                };
                if self.events.is_closed() {
                    return Err(OrderError::OrdererGone);
                }
                self.next(now, &held, ground).await
            }
            At::Moves { step, since } => {
                let backend = ground.backend_mut(step.number)?;
                let Some(moved) = backend.take_moved() else {
                    return Ok(true);
                };
                let (number, pid) = (step.number, backend.pid());
                moved.map_err(|why| OrderError::NotMoved { number, why })?;
                // By any other move it has a process of its own again; a spare is started for
                // the one that has ended.
                match step.to_spare {
                    true => ground.drained.insert(number),
                    false => ground.drained.remove(&number),
                };
                let event = Event {
                    backend: Some(number),
                    pid: Some(pid),
                    took_ms: Some(now.saturating_duration_since(*since).as_millis() as u64),
                    release: Some(step.program.release().to_owned()),
                    ..Event::of("moved")
                };
                let _ = self.events.send(event).await;
                self.at = health(now);
                Ok(true)
            }
        }
    }

    /// The next step of a backend that is here; those between are left out, and told.
    async fn next_here(&mut self, ground: &Ground<'_>) -> Result<Option<Step>, OrderError> {
        while let Some(step) = self.steps.pop_front() {
            let Some(error) = elsewhere(step.number, ground).await else {
                return Ok(Some(step));
            };
            // It was given away since the order was taken.
            if step.is_named {
                return Err(error);
            }
            let (backend, why) = (step.number, error.to_string());
            tracing::warn!(backend, why, "the backend is left as it is");
            let event = Event {
                backend: Some(backend),
                why: Some(why),
                ..Event::of("left")
            };
            let _ = self.events.send(event).await;
        }
        Ok(None)
    }

    async fn next(
        &mut self,
        now: Instant,
        held: &Held,
        ground: &mut Ground<'_>,
    ) -> Result<bool, OrderError> {
        let Some(step) = self.next_here(ground).await? else {
            return Ok(false);
        };
        let number = step.number;
        if !self.without_room {
            room::check(held.get(&number).copied().unwrap_or(0))?;
        }
        let child = match step.to_spare {
            true => {
                ground
                    .spares
                    .take(number, ground.starter, ground.memory)
                    .await
            }
            false => ground
                .starter
                .start(&step.program, Begins::TakesOver(number), ground.memory)
                .map_err(OrderError::cannot_start),
        }?;
        let event = Event {
            backend: Some(number),
            ..Event::of("begins")
        };
        let _ = self.events.send(event).await;
        tracing::info!(
            backend = number,
            pid = child.id(),
            "the backend moves to another process"
        );
        let backend = ground.backend_mut(number)?;
        backend.move_to(child, &step.program, now)?;
        self.at = At::Moves { step, since: now };
        Ok(true)
    }
}

fn health(now: Instant) -> At {
    At::Health {
        since: now,
        looks: None,
        again: now,
    }
}

enum Steps {
    Moves(VecDeque<Step>),
    Done(Event),
}

/// What an order comes to.
async fn steps(order: Order, ground: &mut Ground<'_>) -> Result<Steps, OrderError> {
    let all: Vec<u32> = ground.backends.iter().map(Backend::number).collect();
    let is_spread = ground.starter.home.spread().is_some();
    let check = |number: u32| match all.contains(&number) {
        true => Ok(()),
        false if is_spread => Err(OrderError::OnOtherHost(number)),
        false => Err(OrderError::NoSuchBackend {
            number,
            last: all.len() as u32 - 1,
        }),
    };
    if ground.mode == Mode::R2 {
        return Err(OrderError::ImmutableMove);
    }
    let step = |number: u32, program: &Arc<Program>, to_spare, is_named| Step {
        number,
        program: Arc::clone(program),
        to_spare,
        is_named,
    };
    Ok(match order {
        Order::Restart { backends, .. } => {
            backends.iter().try_for_each(|number| check(*number))?;
            for number in &backends {
                is_here(*number, ground).await?;
            }
            let are_named = !backends.is_empty();
            let mut numbers = backends;
            if numbers.is_empty() {
                numbers.clone_from(&all);
            }
            let mut steps = VecDeque::new();
            for number in numbers {
                let program = ground.backend_mut(number)?.program();
                steps.push_back(step(number, program, false, are_named));
            }
            Steps::Moves(steps)
        }
        Order::Upgrade { binary, .. } => {
            let program = Program::open(&binary).await;
            let program = program.map_err(OrderError::BadProgram)?;
            let backends = ground.backends.iter();
            let others = backends.filter(|backend| !backend.program().is_same(&program));
            let steps = others.map(|b| step(b.number(), &program, false, false));
            let steps: VecDeque<Step> = steps.collect();
            ground
                .spares
                .renew(&program, ground.starter, ground.memory)?;
            Steps::Moves(steps)
        }
        Order::Drain { backend, .. } => {
            check(backend)?;
            if ground.drained.contains(&backend) {
                return Err(OrderError::DrainedBefore(backend));
            }
            if ground.spares.is_empty() {
                return Err(OrderError::NoSpareToDrain);
            }
            is_here(backend, ground).await?;
            let step = step(backend, ground.spares.program(), true, true);
            Steps::Moves([step].into())
        }
        Order::Resize { .. } | Order::ResizePause | Order::ResizeContinue | Order::ResizeAbort => {
            return Err(OrderError::NoResize);
        }
        Order::Undrain { backend } => {
            check(backend)?;
            if !ground.drained.remove(&backend) {
                return Err(OrderError::NotDrained(backend));
            }
            let pid = ground.spares.add(ground.starter, ground.memory)?;
            Steps::Done(Event {
                pid,
                ..Event::of("spare")
            })
        }
    })
}

/// Why a backend is none of this command's: its place is a spare's, which another one has
/// started. Only in a store on other machines places are given away. One that is away does
/// not tell: then the move itself fails.
async fn elsewhere(number: u32, ground: &Ground<'_>) -> Option<OrderError> {
    let home = ground.starter.home.clone();
    if !home.registry().is_remote() {
        return None;
    }
    let look = move || {
        let config = home.registry().load().ok().flatten()?;
        home.other_holder(&config, number)
    };
    let at = tokio::task::spawn_blocking(look).await.ok().flatten()?;
    Some(OrderError::PlaceElsewhere { number, at })
}

async fn is_here(number: u32, ground: &Ground<'_>) -> Result<(), OrderError> {
    elsewhere(number, ground).await.map_or(Ok(()), Err)
}

/// Whether every backend is up and has all that it should have, and how much each holds; else
/// which is not.
pub(super) fn look_at(address: String, tls: Option<Tls>) -> JoinHandle<Result<Held, String>> {
    tokio::task::spawn_blocking(move || {
        let cell = match tls {
            None => Cell::connect(&address),
            tls => Cell::connect_with(&address, tls),
        };
        let cell = cell.map_err(|error| error.to_string())?;
        let mut held = Held::new();
        for answer in cell.stats() {
            let number = answer.number;
            let stats = answer
                .stats
                .map_err(|error| format!("backend {number} does not answer: {error}"))?;
            let of_it = |member: &&trefoil_rpc::v1::MemberStats| member.backend == number;
            let member = stats.members.iter().find(of_it);
            let recovery = member.and_then(|member| member.recovery.as_ref());
            if recovery.is_some_and(|recovery| !recovery.done) {
                return Err(format!("backend {number} has not recovered yet"));
            }
            let process = stats.process.unwrap_or_default();
            held.insert(number, process.resident_bytes);
        }
        Ok(held)
    })
}
