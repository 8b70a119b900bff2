//! Third copies whose answer is still to come when their operation is over: two others were
//! enough for it, and its place is free. Who is going to lack the key is found out here, or
//! nobody knows of it until all replicas are compared.
//!
//! A table of fixed size, found by the message's number: who has so many messages under way
//! that another one needs the place forgets the older one, which the next scan finds.
//! What is refused, or lost, is a key for whoever repairs them ([`crate::suspects`]).

use trefoil_fabric::Token;
use trefoil_fabric::port::Completion;
use trefoil_layout::KeyHash;
use trefoil_layout::message::Answer;
use trefoil_layout::op::{Outcome, Rejection};

/// Answers that are waited for: 40 KiB.
const COUNT_MAX: usize = 1024;
/// Refusals that one turn takes in.
const REFUSED_MAX: usize = 64;

/// By what an answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Near,
    Far,
    /// Of the process before, which has moved.
    Leaving,
}

/// One third copy.
#[derive(Clone, Copy, Debug)]
struct Third {
    token: Token,
    hash: KeyHash,
    /// The backend.
    number: u32,
    via: Via,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// Empty before the first one.
    places: Box<[Option<Third>]>,
    refused: Vec<(u32, KeyHash)>,
}

fn place_of(token: Token) -> usize {
    token.0 as usize % COUNT_MAX
}

impl Late {
    /// The answer to this message is still to come.
    #[inline]
    pub(crate) fn expect(&mut self, token: Token, hash: KeyHash, number: u32, via: Via) {
        if self.places.is_empty() {
            self.make_room();
        }
        self.places[place_of(token)] = Some(Third {
            token,
            hash,
            number,
            via,
        });
    }

    #[cold]
    fn make_room(&mut self) {
        self.places = vec![None; COUNT_MAX].into();
        self.refused.reserve_exact(REFUSED_MAX);
    }

    /// Something has come that no operation waits for.
    #[inline]
    pub(crate) fn hear(&mut self, completion: &Completion<'_>) {
        let token = completion.token();
        let Some(place) = self.places.get_mut(place_of(token)) else {
            return;
        };
        let Some(copy) = place.take_if(|copy| copy.token == token) else {
            return;
        };
        if !is_taken(completion) && self.refused.len() < REFUSED_MAX {
            self.refused.push((copy.number, copy.hash));
        }
    }

    /// A backend and a key that it has refused.
    #[inline]
    pub(crate) fn next_refused(&mut self) -> Option<(u32, KeyHash)> {
        self.refused.pop()
    }

    /// The process that is to answer has moved.
    pub(crate) fn leave(&mut self, number: u32) {
        for copy in self.places.iter_mut().flatten() {
            if copy.number == number && copy.via == Via::Near {
                copy.via = Via::Leaving;
            }
        }
    }

    /// What this backend will not answer any more by that way.
    pub(crate) fn take_lost(&mut self, number: u32, via: Via) -> Vec<KeyHash> {
        let is_lost = |copy: &mut Third| copy.number == number && copy.via == via;
        let lost = |place: &mut Option<Third>| Some(place.take_if(is_lost)?.hash);
        self.places.iter_mut().filter_map(lost).collect()
    }

    /// All of it: nobody answers any more.
    pub(crate) fn take_all(&mut self) -> Vec<KeyHash> {
        let taken = |place: &mut Option<Third>| Some(place.take()?.hash);
        self.places.iter_mut().filter_map(taken).collect()
    }
}

/// Whether the replica holds it now, or will learn of it from the others: one that recovers.
pub(crate) fn is_taken(completion: &Completion<'_>) -> bool {
    let Completion::Answer(_, Answer::Ack(ack)) = completion else {
        return false;
    };
    matches!(
        ack.outcome,
        Outcome::Applied | Outcome::Rejected(Rejection::Recovering)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_client_core::outcome::SendFailure;
    use trefoil_layout::Version;
    use trefoil_layout::op::Ack;

    fn hash(place: u64) -> KeyHash {
        KeyHash { place, tag: 1 }
    }

    fn answer(token: u64, outcome: Outcome) -> Completion<'static> {
        Completion::Answer(Token(token), Answer::Ack(Ack { epoch: 1, outcome }))
    }

    #[test]
    fn what_is_refused_or_lost_is_known() {
        let mut late = Late::default();
        late.hear(&answer(7, Outcome::Rejected(Rejection::NoMemory)));
        assert_eq!(late.next_refused(), None, "nobody's");
        let bound = Version::ZERO;
        for (token, outcome) in [
            (1, Outcome::Applied),
            (2, Outcome::Rejected(Rejection::Recovering)),
            (3, Outcome::Rejected(Rejection::NoMemory)),
            (4, Outcome::Rejected(Rejection::UnknownConfig)),
            (5, Outcome::Superseded { bound }),
        ] {
            late.expect(Token(token), hash(token), 2, Via::Near);
            late.hear(&answer(token, outcome));
            // Once only.
            late.hear(&answer(token, Outcome::Rejected(Rejection::NoMemory)));
            let expected = (token > 2).then_some((2, hash(token)));
            assert_eq!(late.next_refused(), expected, "{outcome:?}");
            assert_eq!(late.next_refused(), None);
        }
        late.expect(Token(6), hash(6), 1, Via::Far);
        late.hear(&Completion::NoAnswer(Token(6), SendFailure::Lost, "lost"));
        assert_eq!(late.next_refused(), Some((1, hash(6))));
    }

    #[test]
    fn what_a_backend_does_not_answer_is_told_by_the_way_it_was_to_come() {
        let mut late = Late::default();
        late.expect(Token(1), hash(1), 0, Via::Near);
        late.expect(Token(2), hash(2), 0, Via::Far);
        late.expect(Token(3), hash(3), 1, Via::Near);
        late.leave(0);
        assert_eq!(late.take_lost(0, Via::Near), []);
        assert_eq!(late.take_lost(0, Via::Leaving), [hash(1)]);
        assert_eq!(late.take_lost(0, Via::Leaving), []);
        assert_eq!(late.take_all(), [hash(2), hash(3)]);
        assert_eq!(late.take_all(), []);
    }

    #[test]
    fn there_is_room_for_so_many_and_no_more() {
        let mut late = Late::default();
        for token in 1..=3 * COUNT_MAX as u64 {
            late.expect(Token(token), hash(token), 0, Via::Near);
        }
        let mut lost = late.take_lost(0, Via::Near);
        lost.sort_by_key(|hash| hash.place);
        assert_eq!(lost.len(), COUNT_MAX);
        assert_eq!(lost[0], hash(2 * COUNT_MAX as u64 + 1));
        for token in 1..=1000 {
            late.expect(Token(token), hash(token), 0, Via::Near);
            late.hear(&answer(token, Outcome::Rejected(Rejection::NoMemory)));
        }
        assert_eq!(late.refused.len(), REFUSED_MAX);
    }
}
