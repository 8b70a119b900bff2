//! The rules as switches. Each can be turned off alone: a mutant.

/// How much a run may do, and which rules hold in it. The numbers are those of
/// `docs/quorum.md`.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Mutations of the run; each is any of the kinds allowed below.
    pub mutations: u8,
    pub with_erase: bool,
    pub with_cas: bool,
    /// CAS that expects absence.
    pub with_add: bool,
    /// SET and ERASE may be delivered again and again.
    pub with_repeats: bool,
    pub with_eviction: bool,
    pub with_forgetting: bool,
    /// Other keys raise the floor at will.
    pub with_other_keys: bool,
    pub crashes: u8,

    /// 1
    pub refuses_below_bound: bool,
    /// 2
    pub forgetting_raises_floor: bool,
    /// 3
    pub eviction_raises_floor: bool,
    /// 4
    pub acks_of_one_epoch: bool,
    /// 5
    pub votes_of_one_epoch: bool,
    /// 6
    pub raise: Raise,
    /// 7
    pub recovering_is_silent: bool,
    /// 8
    pub recovering_refuses: bool,
    /// 9
    pub recovery_takes_floors: bool,
    /// 10
    pub recovery_takes: Take,
    /// 11
    pub repair: Repair,
    /// 13
    pub cas_is_exact: bool,
    /// 14
    pub cas_once: bool,
    /// 15: so many refusals are a failure.
    pub refusals_to_fail: u8,
    /// A CAS that has failed takes back what it left: an ERASE at its own version.
    pub withdraws: Withdraw,
}

/// When a recovering backend raises a peer's epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raise {
    WithTheCopy,
    AfterTheCopy,
}

/// Which values recovery takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// What both peers hold.
    Agreed,
    /// The newest that any peer holds, unless a bound is above it.
    Newest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// What two replicas were seen to agree on, at its own version, as an ordinary SET.
    Agreed,
    /// The newest survivor too, when no two agree.
    Newest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdraw {
    /// Once it has failed.
    WhenFailed,
    /// At any time after it was applied there: safe, but it takes away what may be stored.
    AtWill,
}

impl Rules {
    /// Everything as `docs/quorum.md` says, with three mutations of any kind and
    /// one crash.
    pub fn all() -> Self {
        Rules {
            mutations: 3,
            with_erase: true,
            with_cas: true,
            with_add: false,
            with_repeats: true,
            with_eviction: true,
            with_forgetting: true,
            with_other_keys: false,
            crashes: 1,
            refuses_below_bound: true,
            forgetting_raises_floor: true,
            eviction_raises_floor: true,
            acks_of_one_epoch: true,
            votes_of_one_epoch: true,
            raise: Raise::WithTheCopy,
            recovering_is_silent: true,
            recovering_refuses: true,
            recovery_takes_floors: true,
            recovery_takes: Take::Agreed,
            repair: Repair::Agreed,
            cas_is_exact: true,
            cas_once: true,
            refusals_to_fail: 2,
            withdraws: Withdraw::WhenFailed,
        }
    }

    /// The same without CAS.
    pub fn plain() -> Self {
        Rules {
            with_cas: false,
            ..Rules::all()
        }
    }
}
