//! A transaction of several keys that takes too long to keep everybody waiting.
//!
//! It is executed in pieces, between which other connections have their turn. From before the
//! first look at its keys to after its last command it *holds* these ([`Keyspace::hold`]):
//! whoever wants to do something to one of them, or to all keys, waits. So nobody at this
//! front door sees a part of it, or comes in between, and what is watched cannot change any
//! more once it was looked at. Only listings do not wait (`SCAN`, `KEYS`, memcached's): they
//! may see keys of it before its end.
//!
//! | stage | what is done, piece by piece | then |
//! |---|---|---|
//! | `Gather` | its keys are noted | `Hold` |
//! | `Hold` | they are held, once nobody else holds any | `Check` |
//! | `Check` | versions of watched keys are looked at | `Estimate`, or `Over` |
//! | `Estimate` | it is reckoned what it comes to | `Run`, or `Over` |
//! | `Run` | commands are executed, and answers collected | `Over` |
//! | `Over` | nothing is held any more | the answers |
//!
//! While it holds keys it waits for nobody: not for its client either, who may not read the
//! answers, or have gone ([`Session::is_holding`](crate::session::Session::is_holding)).

use super::answers::Answers;
use super::table::lookup;
use super::transaction::{
    AtOnce, Estimate, Estimating, Transaction, Watched, are_unchanged, arguments, len_of,
};
use super::{RespSession, Step};
use crate::keyspace::{Keyspace, LOOKUP_WORK, Pending, key_mark};
use crate::world::{Now, World};

/// Commands that one piece looks at, or executes, at most.
const PIECE_COMMANDS: usize = 16;
/// Watched keys that one piece looks at.
const PIECE_WATCHED: usize = 64;
/// Bytes of memory that one piece gives back at most.
const PIECE_SHED: usize = 1 << 20;
/// What that counts as: some 250 page faults.
const SHED_WORK: u64 = 128 << 10;
/// Work of the keyspace after which a piece ends, behind the command that it is at.
const PIECE_WORK: u64 = 32 << 10;

/// See the module.
#[derive(Debug)]
pub(super) struct Stretch {
    bytes: Vec<u8>,
    commands: usize,
    watched: Vec<Watched>,
    /// Nothing may come in between, or nothing is executed at all.
    is_held: bool,
    stage: Stage,
    /// Where in the commands the stage has got to; of `Check`, which watched key is next.
    at: usize,
    /// Marks of its keys.
    keys: Vec<u64>,
    estimating: Estimating,
    answers: Answers,
    /// The time of all that it does, from when its keys are held.
    now: Now,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Gather,
    Hold,
    Check,
    Estimate,
    Run,
    Over(End),
}

/// How it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All was executed.
    Done,
    /// A watched key has changed.
    Changed,
    /// It comes to more than is executed while others wait.
    TooMuch,
    /// A command of it could not be executed, though it should: answers would be missing.
    Broken,
}

impl Stretch {
    pub(super) fn of(open: Transaction, watched: Vec<Watched>, is_held: bool) -> Box<Self> {
        let (bytes, commands) = open.into_commands();
        Box::new(Stretch {
            bytes,
            commands,
            watched,
            is_held,
            stage: Stage::Gather,
            at: 0,
            keys: Vec::new(),
            estimating: Estimating::default(),
            answers: Answers::default(),
            now: Now::default(),
        })
    }

    /// Bytes that it keeps.
    pub(super) fn kept(&self) -> usize {
        let watched = self.watched.iter();
        let watched = watched.map(|watched| watched.key.len() + size_of::<Watched>());
        let keys = self.keys.capacity() * size_of::<u64>();
        self.bytes.capacity() + self.answers.kept() + keys + watched.sum::<usize>()
    }

    /// Whether others wait for it.
    pub(super) fn is_holding(&self) -> bool {
        matches!(self.stage, Stage::Check | Stage::Estimate | Stage::Run)
    }

    /// Whether its commands are executed after that, without a hold.
    fn is_replayed(&self, end: End) -> bool {
        end == End::TooMuch && !self.is_held
    }

    /// Gives back some of the memory of its commands, which takes time for each page; whether
    /// there is more.
    fn shed(&mut self) -> bool {
        let rest = self.bytes.len().saturating_sub(PIECE_SHED);
        self.bytes.truncate(rest);
        self.bytes.shrink_to_fit();
        rest > 0
    }

    fn enter(&mut self, stage: Stage) {
        (self.stage, self.at) = (stage, 0);
    }

    /// Shows the next commands, each with its length, until a piece is done; whether there
    /// are no more. How much work that is, beside what is done to them.
    fn each_command(&mut self, mut act: impl FnMut(&mut Self, &[&[u8]], usize)) -> (bool, u64) {
        let begin = self.at;
        let bytes = std::mem::take(&mut self.bytes);
        let mut is_over = false;
        for _ in 0..PIECE_COMMANDS {
            let Some((words, end)) = arguments(&bytes, self.at) else {
                is_over = true;
                break;
            };
            act(self, &words, end - self.at);
            self.at = end;
        }
        self.bytes = bytes;
        // Lengths are skipped over, not looked at.
        let len = (self.at - begin) as u64;
        (is_over, len.min(PIECE_COMMANDS as u64 * LOOKUP_WORK))
    }
}

impl RespSession {
    /// Does the next piece of it.
    pub(super) fn step_stretch<K: Keyspace>(
        &mut self,
        mut stretch: Box<Stretch>,
        out: &mut Vec<u8>,
        world: &mut World<'_, K>,
    ) -> Step {
        let usual = (world.now, world.next_now);
        if stretch.is_holding() {
            // Expiries and their like count from one moment.
            (world.now, world.next_now) = (stretch.now, stretch.now);
        }
        match stretch.stage {
            Stage::Gather => self.gather(&mut stretch, world),
            Stage::Hold => {
                let keys = std::mem::take(&mut stretch.keys);
                if let Err(Pending) = world.keyspace.hold(keys.clone()) {
                    stretch.keys = keys;
                    self.stretch = Some(stretch);
                    return Step::Pending(0);
                }
                stretch.now = world.next_now;
                stretch.enter(Stage::Check);
            }
            Stage::Check => {
                let end = stretch.watched.len().min(stretch.at + PIECE_WATCHED);
                let are_same = are_unchanged(&stretch.watched[stretch.at..end], world);
                stretch.at = end;
                if !are_same {
                    stretch.enter(Stage::Over(End::Changed));
                } else if end == stretch.watched.len() {
                    stretch.enter(Stage::Estimate);
                }
            }
            Stage::Estimate => {
                let keyspace = &mut *world.keyspace;
                let (is_over, work) = stretch.each_command(|stretch, words, len| {
                    let len_of = &mut |key: &[u8]| len_of(key, &mut *keyspace);
                    let of_all = Estimate::default();
                    stretch.estimating.add(words, len, len_of, of_all);
                });
                world.keyspace.charge(work);
                let fits = stretch.estimating.all.fits(&AtOnce::of(world.settings));
                if !fits {
                    stretch.enter(Stage::Over(End::TooMuch));
                } else if is_over {
                    stretch.estimating = Estimating::default();
                    stretch.enter(Stage::Run);
                    if !self.identity.mute.is_on() {
                        self.reply(stretch.answers.tail()).array(stretch.commands);
                    }
                }
            }
            Stage::Run => self.run_piece(&mut stretch, world),
            Stage::Over(end) => {
                if !stretch.is_replayed(end) && stretch.shed() {
                    world.keyspace.charge(SHED_WORK);
                    self.stretch = Some(stretch);
                    return Step::Done(0);
                }
                match end {
                    End::Done => self.answers = Some(Box::new(stretch.answers)),
                    End::Changed => self.reply(out).null_array(),
                    End::Broken => return Step::Close,
                    End::TooMuch if stretch.is_held => {
                        let at_once = AtOnce::of(world.settings);
                        self.reply(out).error(at_once.too_much_at_a_stretch());
                    }
                    End::TooMuch => {
                        self.begin_replay_of(stretch.bytes, stretch.commands, out);
                    }
                }
                return Step::Done(0);
            }
        }
        (world.now, world.next_now) = usual;
        if matches!(stretch.stage, Stage::Over(_)) {
            world.keyspace.release();
        }
        self.stretch = Some(stretch);
        Step::Done(0)
    }

    fn gather<K: Keyspace>(&mut self, stretch: &mut Stretch, world: &mut World<'_, K>) {
        let (is_over, work) = stretch.each_command(|stretch, words, _| {
            let Some(spec) = words.first().and_then(|name| lookup(name)) else {
                return;
            };
            let (first, last, step) = spec.keys;
            if first == 0 {
                return;
            }
            let last = match last {
                -1 => words.len() - 1,
                last => last as usize,
            };
            let keys = words.iter().take(last + 1).skip(first as usize);
            let marks = keys.step_by(step as usize).map(|key| key_mark(key));
            stretch.keys.extend(marks);
        });
        world.keyspace.charge(work);
        if is_over {
            let watched = stretch.watched.iter();
            let watched = watched.map(|watched| key_mark(&watched.key));
            stretch.keys.extend(watched);
            stretch.enter(Stage::Hold);
        }
    }

    /// Executes the next commands.
    fn run_piece<K: Keyspace>(&mut self, stretch: &mut Stretch, world: &mut World<'_, K>) {
        let began = world.keyspace.work();
        let len_max = AtOnce::of(world.settings).answers_len_max();
        (self.is_alone, self.is_replaying) = (true, true);
        for _ in 0..PIECE_COMMANDS {
            let is_over = stretch.at >= stretch.bytes.len() && self.many.is_none();
            if is_over {
                stretch.enter(Stage::Over(End::Done));
                break;
            }
            if world.keyspace.work().wrapping_sub(began) >= PIECE_WORK {
                break;
            }
            let rest = &stretch.bytes[stretch.at..];
            match self.step(rest, stretch.answers.tail(), len_max, world) {
                Step::Done(len) => {
                    world.conclude();
                    stretch.at += len;
                    stretch.answers.cut();
                }
                _ => {
                    // What was queued was whole, and who holds keys waits for nobody.
                    debug_assert!(false, "a command of a transaction that is not ready");
                    stretch.enter(Stage::Over(End::Broken));
                    break;
                }
            }
        }
        (self.is_alone, self.is_replaying) = (false, false);
    }
}
