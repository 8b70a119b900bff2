//! What is wrong with a cell's backends, by what they say of themselves.
//!
//! What lasts for a moment is no finding: see [`lasting`]. `skew` has what backends
//! disagree on.

mod skew;
#[cfg(test)]
mod tests;

use super::census::{Answered, Backend, Census};
use super::finding::Finding;
use bytesize::ByteSize;

/// A lease with less than this part of its time left is about to end: three renewals of
/// four were missed.
const LEASE_END: u64 = 4;
/// An immutable cell that is fuller than this has no room for its next corpus.
const FULL_PERCENT: u64 = 90;
/// Pages that are on their way back to the system are no finding.
const OVER_LIMIT_PERCENT: u64 = 102;

/// What a backend is, not what it shows for a moment: told as soon as it is seen.
const STATES: [&str; 5] = ["down", "silent", "refuses", "recovering", "lost"];

/// States of the backends at a later census, what else an earlier one had shown, too, and
/// what has happened in between.
pub(super) fn lasting(before: &Census, after: &Census) -> Vec<Finding> {
    let earlier = findings(before);
    let mut all = findings(after);
    all.retain(|finding| {
        let mut known = earlier.iter();
        STATES.contains(&finding.kind) || known.any(|known| known.is_same(finding))
    });
    all.extend(refused_writes(before, after));
    all
}

/// What one census shows.
fn findings(census: &Census) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(census.backends.iter().filter_map(unheard));
    skew::configurations(census, &mut all);
    skew::releases(census, &mut all);
    skew::clocks(census, &mut all);
    skew::limits(census, &mut all);
    skew::epochs(census, &mut all);
    skew::corpora(census, &mut all);
    for (number, answered) in census.answered() {
        let of_backend = one(census, answered).into_iter();
        all.extend(of_backend.map(|finding| finding.of_backend(number)));
    }
    all
}

/// A backend that says nothing.
fn unheard(backend: &Backend) -> Option<Finding> {
    let trouble = backend.answer.as_ref().err()?;
    let (number, why) = (backend.number, &trouble.why);
    let finding = match backend.state {
        "silent" => Finding::new(
            "silent",
            match backend.pid {
                Some(pid) => format!("backend {number} (process {pid}) does not answer: {why}"),
                None => format!("backend {number} does not answer: {why}"),
            },
            "See what holds its process or host up (stopped, swapped out, no network), and \
             kill the process if it does not come back: keys that it has missed stay dirty",
        ),
        "refuses" => Finding::new(
            "refuses",
            format!("backend {number} answers and refuses: {why}"),
            "Run this as the user who runs the cell, with its token if that is another \
             host, and see that no other process has taken the backend's address",
        ),
        _ => Finding::new(
            "down",
            format!("backend {number} is down: {why}"),
            "Read in the log of `cell up` why it died: it is started again by itself, unless the \
             cell runs with `--restart never`; then only starting the cell anew brings it back, \
             and that begins empty. Over etcd, `trefoil cell spare` offers a process that takes \
             its place",
        ),
    };
    Some(finding.of_backend(number))
}

/// What one backend that answers says of itself.
fn one(census: &Census, answered: &Answered) -> Vec<Finding> {
    let mut all = Vec::new();
    let number = answered.member.backend;
    let (member, process) = (&answered.member, &answered.process);
    if let Some(recovery) = &member.recovery {
        if recovery.shards_left > 0 {
            let done = f64::from(recovery.permille) / 10.0;
            let mut what = format!("backend {number} is recovering: {done:.1} % done");
            let mut advice = "Wait for it (`trefoil cell status` shows how far it is), and do \
                              not stop another backend meanwhile";
            if !recovery.waits_for.is_empty() {
                what += &format!("; it waits: {}", recovery.waits_for);
                advice = match census.config.mode.is_immutable() {
                    true => {
                        "Bring the other replica back, or put the corpus' file back to its \
                         place, or load a corpus with `trefoil cell reload`: whatever comes \
                         first is taken"
                    }
                    false => {
                        "Bring the backend back that it waits for: it recovers from both \
                         others of its cohort"
                    }
                };
            }
            all.push(Finding::new("recovering", what, advice));
        }
        if recovery.shards_lost > 0 {
            all.push(Finding::new(
                "lost",
                format!(
                    "{} shards of backend {number} came back empty: two of three replicas had \
                     lost them",
                    recovery.shards_lost
                ),
                "Fill the cache again from its source; this is told until the backend is \
                 started anew",
            ));
        }
    }
    if member.lease_ms > 0 && member.lease_left_ms < member.lease_ms / LEASE_END {
        let (left, whole) = (member.lease_left_ms, member.lease_ms);
        all.push(Finding::new(
            "lease",
            format!("backend {number} has {left} of {whole} ms of its lease left"),
            "Give its host more CPU: the thread that renews it gets none, and readers stop \
             using a backend whose lease has ended",
        ));
    }
    let is_same_host = answered.boot_id == census.boot_id;
    // One without rings lacks room for them, and its memory is read all the same.
    let is_shared = !matches!(answered.carrier, "rpc" | "down");
    // Clients read nothing of a backend whose configuration they do not know: that is told
    // as skew.
    let is_known = answered.served_config_id <= census.config.config_id;
    if is_same_host && is_known && !answered.fabric_socket.is_empty() && !is_shared {
        let why = answered
            .carrier_why
            .as_deref()
            .unwrap_or("no reason is known");
        let (carrier, socket) = (answered.carrier, &answered.fabric_socket);
        all.push(Finding::new(
            "fabric",
            format!(
                "backend {number} is on this host and reached by {carrier}, not by shared \
                 memory at {socket}: {why}"
            ),
            "See that the socket is there and may be opened by this user, and that the \
             programs are of one release",
        ));
    }
    if let Some(Err(why)) = &answered.metrics {
        all.push(Finding::new(
            "metrics",
            format!("the metrics of backend {number} do not answer: {why}"),
            "See what keeps connections from it (a firewall, or too many of them), or nobody \
             is warned when something breaks",
        ));
    }
    let (resident, limit) = (process.resident_bytes, process.memory_limit_bytes);
    let percent = resident.saturating_mul(100) / limit.max(1);
    let of = format!("{} of {}", ByteSize::b(resident), ByteSize::b(limit));
    if percent > OVER_LIMIT_PERCENT {
        all.push(Finding::new(
            "memory",
            format!("the process of backend {number} holds {of}, more than its limit"),
            "Wait if the limit was lowered; otherwise raise it with `trefoil cell memory`, or \
             the host may run out of memory",
        ));
    } else if census.config.mode.is_immutable() && percent >= FULL_PERCENT {
        all.push(Finding::new(
            "memory",
            format!("the process of backend {number} holds {of}: nothing is evicted at R=2"),
            "Raise the limit with `trefoil cell memory` before the corpus grows, or reload \
             with --clear-first",
        ));
    }
    all
}

/// Writes that were refused for lack of memory between two censuses: evicting did not
/// help them.
fn refused_writes(before: &Census, after: &Census) -> Vec<Finding> {
    let mut all = Vec::new();
    for (number, answered) in after.answered() {
        let earlier = before.backend(number).and_then(|b| b.answer.as_ref().ok());
        let Some(earlier) = earlier.filter(|e| e.incarnation == answered.incarnation) else {
            continue;
        };
        let refused = |answered: &Answered| -> u64 {
            let classes = answered.member.size_classes.iter();
            classes.map(|class| class.no_memory).sum()
        };
        let count = refused(answered).saturating_sub(refused(earlier));
        if count > 0 {
            let finding = Finding::new(
                "memory",
                format!("backend {number} refused {count} writes for lack of memory meanwhile"),
                "Raise the limit with `trefoil cell memory`: values come that do not fit, \
                 though it evicts",
            );
            all.push(finding.of_backend(number));
        }
    }
    all
}
