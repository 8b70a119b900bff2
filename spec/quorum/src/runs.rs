//! The runs: the rules within several bounds, and a mutant for each rule.

use crate::rules::{Raise, Repair, Rules, Take, Withdraw};

pub struct Run {
    pub name: &'static str,
    pub rules: Rules,
    /// It has to break the promise.
    pub is_mutant: bool,
}

pub fn all() -> Vec<Run> {
    let keeps = |name, rules| Run {
        name,
        rules,
        is_mutant: false,
    };
    let breaks = |name, rules| Run {
        name,
        rules,
        is_mutant: true,
    };
    let (all, plain) = (Rules::all, Rules::plain);
    vec![
        keeps("all-rules", all()),
        keeps(
            "two-crashes",
            Rules {
                mutations: 2,
                crashes: 2,
                ..all()
            },
        ),
        keeps(
            "other-keys",
            Rules {
                mutations: 2,
                with_other_keys: true,
                ..all()
            },
        ),
        keeps(
            "add",
            Rules {
                mutations: 2,
                with_add: true,
                ..all()
            },
        ),
        keeps(
            "heal-and-add",
            Rules {
                with_add: true,
                with_cas: false,
                crashes: 0,
                ..all()
            },
        ),
        keeps(
            "four-plain",
            Rules {
                mutations: 4,
                ..plain()
            },
        ),
        keeps(
            "withdraws-at-will",
            Rules {
                withdraws: Withdraw::AtWill,
                crashes: 0,
                ..all()
            },
        ),
        breaks(
            "1-accepts-below-bound",
            Rules {
                refuses_below_bound: false,
                crashes: 0,
                ..all()
            },
        ),
        breaks(
            "2-forgets",
            Rules {
                forgetting_raises_floor: false,
                crashes: 0,
                ..all()
            },
        ),
        breaks(
            "3-evicts",
            Rules {
                eviction_raises_floor: false,
                crashes: 0,
                ..plain()
            },
        ),
        breaks(
            "4-acks-across-epochs",
            Rules {
                acks_of_one_epoch: false,
                ..plain()
            },
        ),
        breaks(
            "5-votes-across-epochs",
            Rules {
                votes_of_one_epoch: false,
                ..plain()
            },
        ),
        breaks(
            "6-raises-after-the-copy",
            Rules {
                raise: Raise::AfterTheCopy,
                ..plain()
            },
        ),
        breaks(
            "7-recovering-votes",
            Rules {
                recovering_is_silent: false,
                recovering_refuses: false,
                ..plain()
            },
        ),
        breaks(
            "8-recovering-stores",
            Rules {
                recovering_refuses: false,
                ..all()
            },
        ),
        breaks(
            "9-recovery-without-floors",
            Rules {
                recovery_takes_floors: false,
                ..plain()
            },
        ),
        breaks(
            "10-recovery-takes-newest",
            Rules {
                recovery_takes: Take::Newest,
                ..all()
            },
        ),
        breaks(
            "11-repair-takes-newest",
            Rules {
                repair: Repair::Newest,
                crashes: 0,
                ..all()
            },
        ),
        breaks(
            "13-cas-compares-bounds",
            Rules {
                cas_is_exact: false,
                crashes: 0,
                ..all()
            },
        ),
        breaks(
            "14-cas-twice",
            Rules {
                cas_once: false,
                crashes: 0,
                ..all()
            },
        ),
        breaks(
            "15-one-refusal-fails",
            Rules {
                refusals_to_fail: 1,
                crashes: 0,
                ..all()
            },
        ),
    ]
}
