//! One server of a linked store, for one corpus: which keys it serves, how
//! values move with their keys, what copies there are and what is lost.
//! Sans-IO: time, messages and values are arguments; what is to be done comes
//! out as effects. The same inputs give the same outputs.
//!
//! # Words
//!
//! *Authority* over a point: the right to serve and to change its keys. It
//! follows the assignment, but it is not the assignment: the map says where
//! the authority is to go, and messages take it there together with the
//! values. A *claim* asks for it; a *chunk* carries it; its *token* is the
//! version of the claim that brought it here, and fences former owners off.
//!
//! # Invariants
//!
//! 1. At most one server has the authority over a point, apart from servers
//!    that the coordination has taken for dead. It moves in one message, with
//!    all values of its range: what has arrived is whole, what has not is
//!    whole at the sender.
//! 2. Only who has the authority serves commits, and he serves every key that
//!    he has, whatever the map says, until somebody claims it.
//! 3. Whoever answers a claim promises not to accept the authority by an older
//!    assignment. So when everybody alive has answered "nothing", nobody has
//!    it and nobody will get it: only then is it made anew, with a report of
//!    what is lost. Who has answered otherwise takes that back only when it
//!    went to nobody by a newer assignment, who may have answered before.
//!    Nobody reports anything without a lease.
//! 4. Tokens of one point grow with every owner.
//! 5. Strong: a commit is acknowledged when every server that may have a copy
//!    of its key has confirmed it, is known to have dropped its copy, or is
//!    dead; and only under a lease; and [`Config::copies_min`] servers have it,
//!    this one counted. Everybody who is assigned and alive gets a
//!    copy first; what it cannot store it refuses, keeps what it had, and is
//!    sent again. (Who is dropping a copy when it is assigned anew gets the next
//!    one after that; commits that had begun do not wait for it.) So any copy will do when the owner dies. A copy is dropped
//!    when the others are complete, not before; the giver's values are a copy
//!    too. A key with a commit of unknown fate is served by a new owner only
//!    after all copies agree about it. A key that is to be given away waits for
//!    its commits; one that a copy cannot store is taken back, for that copy may
//!    be the only other one of what was acknowledged before.
//! 6. A copy follows the owner with the newest token; orders of a former one
//!    are refused, from the moment that somebody claims it for dead. Who hears of copies
//!    with a chunk was told before how new they may be: a holder that it does not know is
//!    dead only if they are no newer than its map.
//! 7. Each lost range and each lost key is in exactly one report of one
//!    server. (A server that finds itself replaced names, besides, the keys
//!    that it committed without a lease.)
//! 8. A request is redirected to who has claimed the key, or has it by the
//!    newest map known; where that is this server it waits, or is sent to who has
//!    what this one could not store. So stable maps redirect at most once.
//! 9. Strong: what its next owner cannot store stays with its owner, or stays a copy
//!    where there is none. Its owner sees to its copies: by the map, or at others if need be.
//!
//! `trefoil-linked-sim` checks all of it with everything going wrong.
//!
//! # What follows, and what it costs
//!
//! * Moving: the new owner has a key one round trip after it was asked for
//!   ([`Message::Pull`]), the rest streams in the order of the key space within
//!   [`Config::bulk_bytes`] and [`Config::bytes_per_second`]. Who is claimed
//!   from later asks everybody, so chains and returns need no special case.
//! * Moves and copies that nobody waits for delay what is urgent by little: they are
//!   made a chunk at a time, each in a [`Core::tick`] of its own, take turns,
//!   and have a small share of the window to each server.
//! * What happens for each request, commit and chunk looks at what it concerns, not at all that
//!   waits or is under way: requests are found by who waits, dirty copies by the order that
//!   changed them, orders by their commits.
//! * Strong: a value that its next owner cannot store does not move. It is served on, but
//!   for a round trip now and then in which it is sent again; who asks then waits. Two
//!   servers say so ([`Effect::NotMoved`], [`Core::refusals`]). In other modes it is lost
//!   by name.
//! * A value that cannot be marshalled does not move: its entry says so, and
//!   the receiver, who has the authority from then on, reports it by name.
//! * When a receiver dies, what it had not confirmed is lost with it, except
//!   for copies: it may have served it. What had not been sent is untouched.
//! * When a sender dies, what has arrived is served on, and the rest reported.
//! * A range whose owner died waits for the answers of everybody alive. A
//!   server that is alive and does not answer is waited for until its lease
//!   has run out.
//! * A server that is alive and that another one cannot reach is reached through a
//!   third one, which is asked for after eight times [`Config::resend_after`] in vain
//!   (`peers::detour`). Strong commits wait for a copy that nobody can reach until its lease has
//!   run out, also for one that the map had before: it serves reads until it is known to
//!   have dropped what it has.
//! * Without copies, a server that is cut off serves on
//!   ([`Config::lease_required`]): what it acknowledges after its lease is
//!   covered by the report of whoever took over, and named by itself once it
//!   knows.
//!
//! # How it is driven
//!
//! ```text
//!   learn(assignment, alive)  lease(until)  receive(from, frame)  tick()      ─┐
//!   request()  propose()  touched()  drain()                                   ├─► Core ─► poll() → Effect
//!                       Values: publish, scan, get, store, forget, settle ◄────┘
//! ```
//!
//! * Before the first frame of a server `meet` says what its release speaks.
//! * Call anything, then `poll` until it returns `None`. Call `tick` at
//!   [`Core::next_tick`], and before anything else when it is overdue. It is due at
//!   once, again and again, while there are chunks to make: whoever has something
//!   urgent goes in between.
//! * `now` is this server's monotonic clock; it is never compared with anybody
//!   else's.
//! * Threads that serve keys look at the newest published [`Table`] first, and
//!   take the core's lock only when it says [`Status::Ask`]. In modes without
//!   strong copies a commit of an owned key never enters the core, unless the
//!   table asks to note it. `cargo run --release -p trefoil-linklet-core
//!   --example table` says what a look costs.
//! * A [`ServerId`](trefoil_sharder::ServerId) is one life of a process.
//! * Frames go as bytes ([`Frame::encode`]); they may be lost, repeated and
//!   reordered.
//!
//! | module | what it does |
//! |---|---|
//! | `core` | the parts of the state, and the ways in and out |
//! | `known`, `peers` | what others know of maps; who lives, and how he is reached, through a third one if need be |
//! | `lease`, `authority` | until when this server may serve; what it owns |
//! | `receiver`, `giver` | the two sides of a move, what its next owner cannot store, and copies for who takes over from a dead one |
//! | `followers`, `copies` | the two sides of a copy |
//! | `proposals`, `settle` | strong commits |
//! | `serve`, `waiting` | what becomes of a request, and who waits |
//! | `published`, `table` | what threads look at |
//! | `bulk`, `part`, `pause` | what nobody waits for: chunks, in turns; and how long what was refused waits |
//! | `drain` | seeing that nothing is left |
//! | `outbox` | what the driver is to do |
//! | `link`, `message`, `codec`, `wire` | what servers say to each other, how it arrives, and what other releases know of it |
//! | `ranges` | facts about ranges of the key space |

mod authority;
mod bulk;
mod codec;
mod config;
mod copies;
mod core;
mod drain;
mod effect;
mod followers;
mod giver;
mod known;
mod lease;
mod link;
mod loss;
mod message;
#[doc(hidden)]
pub mod mutants;
mod outbox;
mod part;
mod pause;
mod peers;
mod proposals;
mod published;
mod ranges;
mod receiver;
mod serve;
mod settle;
mod table;
mod values;
mod waiting;
mod wire;

pub use crate::core::Core;
pub use codec::{DecodeError, FRAME_BYTES_MAX};
pub use config::{CHUNK_BYTES_MAX, Config, ConfigError, Replication, TooFew};
pub use effect::{Access, Commit, Decision, Effect, Refused, Request, Ticket, Uncertain};
pub use loss::{Extent, Loss, LossReason};
pub use message::{
    Chunk, ChunkKind, Claim, ClaimAnswer, CopyOrder, Entry, Frame, Message, Operation, Pass,
};
pub use table::{Status, Table};
pub use values::{Limit, NotStored, Scan, VALUE_BYTES_MAX, Values};
pub use wire::{Wire, WireError};
