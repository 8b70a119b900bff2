//! Answers that come later: through the rings, or from calls.

use crate::client::Client;
use crate::rpc::{CallAnswer, Completion};
use crate::time;
use std::time::Duration;
use trefoil_cell::Cohort;
use trefoil_client_core::mode::REPLICAS_MAX;
use trefoil_client_core::outcome::SendFailure;
use trefoil_fabric::RequestId;
use trefoil_fabric::shm::wait_any;
use trefoil_layout::Version;
use trefoil_layout::message::{Answer, ErrorCode};
use trefoil_layout::op::{Ack, Found, ItemUse, LookupAnswer, Rejection};
use trefoil_region::WordBuffer;
use trefoil_rpc::v1;

/// How often those that do not answer are looked at: whose lease has ended, twice
/// in a row, is not waited for. (Once may be a pause of this whole machine, after
/// which the backend renews it at once.)
const LEASE_LOOK_NS: u64 = 50_000_000;

/// Where rings and calls are both outstanding, neither is slept on longer.
const MIXED_WAIT: Duration = Duration::from_micros(200);

/// What is outstanding at one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Outstanding {
    #[default]
    Nothing,
    Ring(RequestId),
    Call,
}

/// One for each place in the cohort.
pub(crate) type AllOutstanding = [Outstanding; REPLICAS_MAX];

/// What came of it.
#[derive(Debug)]
pub(crate) enum Event {
    Ack(Ack),
    /// A lookup found data, which lies in the link's buffer.
    Present {
        epoch: u32,
        version: Version,
    },
    Absent {
        epoch: u32,
    },
    Refused {
        epoch: u32,
        rejection: Rejection,
    },
    /// How the item was used.
    Use(Option<ItemUse>),
    /// The answer does not fit a message: ask by RPC.
    TooLarge,
    /// No answer will come.
    Gone(SendFailure, String),
}

impl Client {
    /// Waits for one event of the outstanding ones; `None` when `until_ns` has come.
    pub(crate) fn next_event(
        &mut self,
        cohort: Cohort,
        outstanding: &mut AllOutstanding,
        until_ns: u64,
    ) -> Option<(usize, Event)> {
        let mut lapsed_before = 0;
        let mut look_ns = u64::MAX;
        loop {
            if let Some(event) = self.ring_event(cohort, outstanding) {
                return Some(event);
            }
            let now = time::monotonic_ns();
            if now >= look_ns {
                let lapsed = self.lapsed(cohort, outstanding, now);
                if lapsed & lapsed_before != 0 {
                    let place = (lapsed & lapsed_before).trailing_zeros() as usize;
                    return Some((place, self.give_up_on(cohort, outstanding, place, now)));
                }
                lapsed_before = lapsed;
                look_ns = u64::MAX;
            }
            look_ns = look_ns.min(now + LEASE_LOOK_NS);
            if now >= until_ns {
                return None;
            }
            let patience = Duration::from_nanos(until_ns.min(look_ns) - now);
            let calls = outstanding.contains(&Outstanding::Call);
            let rings = outstanding
                .iter()
                .any(|o| matches!(o, Outstanding::Ring(_)));
            let completion = match (rings, calls) {
                (true, false) => {
                    self.wait_rings(cohort, outstanding, patience);
                    continue;
                }
                (true, true) => {
                    self.wait_rings(cohort, outstanding, patience.min(MIXED_WAIT));
                    self.done.1.try_recv().ok()
                }
                (false, true) => self.done.1.recv_timeout(patience).ok(),
                (false, false) => {
                    // Nobody is left who could answer.
                    std::thread::sleep(patience.min(Duration::from_millis(1)));
                    None
                }
            };
            if let Some(completion) = completion
                && let Some(event) = self.call_event(cohort, outstanding, completion)
            {
                return Some(event);
            }
        }
    }

    /// The places at which a ring's answer is awaited from a backend whose lease
    /// has ended, as a bit set.
    fn lapsed(&self, cohort: Cohort, outstanding: &AllOutstanding, now_ns: u64) -> u8 {
        let mut lapsed = 0;
        for (place, number) in cohort.as_slice().iter().enumerate() {
            if matches!(outstanding[place], Outstanding::Ring(_))
                && let Some(connection) = self.links[*number as usize].shared()
                && !connection.lease_alive(now_ns)
            {
                lapsed |= 1 << place;
            }
        }
        lapsed
    }

    fn give_up_on(
        &mut self,
        cohort: Cohort,
        outstanding: &mut AllOutstanding,
        place: usize,
        now_ns: u64,
    ) -> Event {
        outstanding[place] = Outstanding::Nothing;
        self.links[cohort.as_slice()[place] as usize].set_down(now_ns);
        let why = "the backend does not answer and its lease has ended";
        Event::Gone(SendFailure::Lost, why.into())
    }

    fn wait_rings(&mut self, cohort: Cohort, outstanding: &AllOutstanding, patience: Duration) {
        let mut channels = [None; REPLICAS_MAX];
        let mut count = 0;
        for (place, number) in cohort.as_slice().iter().enumerate() {
            if matches!(outstanding[place], Outstanding::Ring(_))
                && let Some(channel) = self.links[*number as usize]
                    .shared()
                    .and_then(|c| c.channel())
            {
                channels[count] = Some(channel);
                count += 1;
            }
        }
        // All of them are there; the filler is never looked at.
        if let Some(first) = channels[0] {
            let channels = channels.map(|channel| channel.unwrap_or(first));
            wait_any(&channels[..count], patience);
        }
    }

    fn ring_event(
        &mut self,
        cohort: Cohort,
        outstanding: &mut AllOutstanding,
    ) -> Option<(usize, Event)> {
        for (place, number) in cohort.as_slice().iter().enumerate() {
            let Outstanding::Ring(wanted) = outstanding[place] else {
                continue;
            };
            let link = &mut self.links[*number as usize];
            let Some((connection, bytes)) = link.shared_and_bytes() else {
                outstanding[place] = Outstanding::Nothing;
                return Some((
                    place,
                    Event::Gone(SendFailure::Lost, "the connection broke".into()),
                ));
            };
            let mut event = None;
            let polled = connection.poll(|id, answer| {
                if id == wanted {
                    event = Some(ring_answer(answer, bytes));
                }
            });
            if event.is_none() && polled.is_err() {
                link.set_down(time::monotonic_ns());
                event = Some(Event::Gone(
                    SendFailure::Lost,
                    "the backend has closed the connection".into(),
                ));
            }
            if let Some(event) = event {
                outstanding[place] = Outstanding::Nothing;
                return Some((place, event));
            }
        }
        None
    }

    fn call_event(
        &mut self,
        cohort: Cohort,
        outstanding: &mut AllOutstanding,
        completion: Completion,
    ) -> Option<(usize, Event)> {
        let Completion {
            operation,
            replica,
            answer,
        } = completion;
        if operation != self.operation || outstanding[replica] != Outstanding::Call {
            return None;
        }
        outstanding[replica] = Outstanding::Nothing;
        let bytes = &mut self.links[cohort.as_slice()[replica] as usize].bytes;
        Some((replica, call_answer(answer, bytes)))
    }
}

fn ring_answer(answer: Answer<'_>, bytes: &mut WordBuffer) -> Event {
    match answer {
        Answer::Ack(ack) => Event::Ack(ack),
        Answer::Lookup(answer) => lookup_event(answer, bytes),
        Answer::Use(found) => Event::Use(found),
        Answer::Error(ErrorCode::TooLarge) => Event::TooLarge,
        Answer::Error(ErrorCode::Malformed) => {
            Event::Gone(SendFailure::NotSent, ErrorCode::Malformed.to_string())
        }
        Answer::Error(code) => Event::Gone(SendFailure::Lost, code.to_string()),
        Answer::Pong => Event::Gone(
            SendFailure::Lost,
            "the backend answered something else".into(),
        ),
    }
}

fn lookup_event(answer: LookupAnswer<'_>, bytes: &mut WordBuffer) -> Event {
    let epoch = answer.epoch;
    match answer.found {
        Found::Present { version, data } => {
            bytes.prepare(data.len());
            bytes.bytes_mut().copy_from_slice(data);
            Event::Present { epoch, version }
        }
        Found::Absent => Event::Absent { epoch },
        Found::Rejected(rejection) => Event::Refused { epoch, rejection },
    }
}

fn call_answer(answer: CallAnswer, bytes: &mut WordBuffer) -> Event {
    let lost = |status: &tonic::Status| {
        let failure = if certainly_not_sent(status) {
            SendFailure::NotSent
        } else {
            SendFailure::Lost
        };
        Event::Gone(failure, crate::rpc::status_text(status))
    };
    match answer {
        CallAnswer::Lookup(Ok(response)) => match trefoil_rpc::decode_lookup_answer(&response) {
            Ok(answer) => lookup_event(answer, bytes),
            Err(error) => Event::Gone(SendFailure::Lost, error.to_string()),
        },
        CallAnswer::Mutate(Ok(response)) => match trefoil_rpc::decode_ack(&response) {
            Ok(ack) => Event::Ack(ack),
            Err(error) => Event::Gone(SendFailure::Lost, error.to_string()),
        },
        CallAnswer::Use(Ok(response)) => Event::Use(response.found.and_then(decode_use)),
        CallAnswer::Lookup(Err(status))
        | CallAnswer::Mutate(Err(status))
        | CallAnswer::Use(Err(status)) => lost(&status),
    }
}

fn decode_use(found: v1::ItemUse) -> Option<ItemUse> {
    Some(ItemUse {
        version: trefoil_rpc::decode_version(found.version?),
        hit_before: found.hit_before,
        last_use_s: found.last_use_s,
    })
}

/// Whether no connection stood on which the call could have gone out, or the
/// server refused it before executing anything.
pub(crate) fn certainly_not_sent(status: &tonic::Status) -> bool {
    if matches!(
        status.code(),
        tonic::Code::InvalidArgument | tonic::Code::NotFound
    ) {
        return true;
    }
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            use std::io::ErrorKind::{ConnectionRefused, NotFound};
            return matches!(error.kind(), ConnectionRefused | NotFound);
        }
        source = error.source();
    }
    false
}
