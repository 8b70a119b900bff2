//! The ordered queue on one host: mutations that commit when they are published in
//! shared memory, and execute afterwards, in the order of their tickets.
//!
//! ```text
//!  client A ─ lane A (A and the server map it) ──┐
//!    ticket ▼                                    │ marks, turns, slots
//!  order object: one word (all clients map it)   ├──► Merge ─► Service
//!    ticket ▲                                    │    in order of positions
//!  client B ─ lane B (B and the server map it) ──┘
//!             ◄── answers to what is not nilext, slots free again
//! ```
//!
//! A request that is *nilext* (its answer does not depend on its execution, as of a
//! SET) is done for its client when it is published: two words changed, nobody woken.
//! Any other request waits for its answer.
//!
//! | module | what |
//! |---|---|
//! | [`order`] | the order object: the ticket word |
//! | [`lane`], [`slot`] | a lane's words, its slots and their checksums |
//! | [`producer`] | a client's steps, without I/O |
//! | [`merge`] | the server: which request is next, without I/O |
//! | [`queue`], [`worker`] | both sides over memory objects, with bells |
//! | [`durable`] | the server of a queue with a journal: acknowledged is persistent |
//! | [`carrier`] | what a client sees, whatever carries its requests |
//! | [`shared`], [`delegate`] | one connection for many threads, and for many processes |
//! | [`marks`] | how a reader past the queue misses nothing that is acknowledged |
//! | [`mutants`] | rules to be broken in tests |
//!
//! # Thread safety
//! 1. **Claim before ticket.** A client sets its lane's turn to *claimed* before it takes
//!    its ticket (release; both are read-modify-write operations). Whoever has seen a
//!    request of a higher position published (acquire) sees every lower ticket's claim, or
//!    what it has become.
//! 2. **One compare-and-swap decides.** *Claimed* becomes *published* (by its client: it is
//!    committed) or *skipped* (by the server: it is not, and never executed). Each side
//!    knows what it has come to. The mark is set after that, and is never needed.
//! 3. **The lowest position is next** when it follows the one executed last, or each lane
//!    is rid of all that it had begun when that lowest position had been seen: executed,
//!    skipped, or found to be above it. That may be several requests of a lane, if the server
//!    was held up between two looks. A claim that others wait for is skipped after [`merge::PATIENCE_NS`]: a client that dies between
//!    ticket and publish costs others so much once, and one that does so again and again
//!    ever less. A claim that is made meanwhile is not waited for: its ticket is higher.
//! 4. **A lane's sequence is executed once or skipped**, in order: the server's cursor is
//!    private memory and only grows.
//! 5. **A slot is reused when it is executed** (release), and copied before. A lane
//!    without a free slot withholds: nothing is claimed, no ticket is taken.
//! 6. **What a client writes is copied, then validated, then used.** Nonsense breaks that
//!    client's lane and no other.
//! 7. **An orderly end loses nothing.** The server closes each turn by compare-and-swap;
//!    what is published before is executed, what comes later is refused.
//! 8. **What is taken is held.** A server that takes requests and executes them later frees
//!    their slots when they are executed, and no later slot of that lane before, also not
//!    that of a claim which it skips meanwhile.
//!
//! # What a hostile client can do to others
//! Slots, turns and answers of a lane are mapped by its client and the server alone. So
//! whatever another process writes: **a committed request of an honest client is executed,
//! once, with its bytes, after its client's earlier ones.** The order object is shared, and
//! a process that writes nonsense into the ticket word
//! * can have requests *of different clients* executed in another order than they were
//!   committed in, while they stand in the queue. Duplicate positions and those that come
//!   late are counted ([`merge::Counts::out_of_order`]);
//! * can keep others from committing: a client whose position does not grow is refused
//!   ([`producer::Refused::OrderBroken`]), and nothing is executed for that.
//!
//! A client may also publish a position that it did not draw. One that is not above its last
//! breaks its lane. One far above all others makes every ticket *late* up to there: late
//! requests take turns by lanes, each client's in its order, and with those that are not late.
//!
//! A client that takes tickets and does not publish them delays the execution (not the
//! commit) of what others have published, by [`merge::PATIENCE_NS`] at most for each
//! ticket. Each skip halves its patience, down to a microsecond, and each of its requests
//! that is executed doubles it again. Full is each lane for itself.

mod bell;
pub mod carrier;
mod consumer;
pub mod delegate;
pub mod durable;
pub mod lane;
pub mod marks;
pub mod merge;
pub mod mutants;
pub mod order;
pub mod parted;
pub mod producer;
pub mod queue;
pub mod service;
pub mod shared;
pub mod slot;
pub mod words;
pub mod worker;

pub use carrier::Carrier;
pub use delegate::{Delegate, DelegateError, Forwarder};
pub use durable::{DurableError, DurableService, DurableWorker};
pub use lane::CommitBy;
pub use merge::{Counts, Merge, Step, Taken};
pub use producer::{Committed, Producer, Refused};
pub use queue::{NoAnswer, Queue};
pub use service::{Answer, AnswerTooLong, Request, Service};
pub use shared::Shared;
pub use worker::{Invitation, Options, OwnerId, ProducerClaim, ProducerId, SetUpError, Worker};
