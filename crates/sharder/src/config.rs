//! Every threshold of the balancer, with how they relate.
//!
//! *Fair share* is the unit of load: a server at 1.0 carries its part of the
//! whole, by capacity. *Fair load* is the load of an average server at 1.0.

use std::time::Duration;

/// What may be changed at all: the switch for deployments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Freeze {
    /// Everything is allowed.
    #[default]
    Off,
    /// Slices of dead servers find new ones, and what cannot be stored another; nothing
    /// else changes.
    OnlyDead,
    /// Nothing changes, not even for dead servers.
    All,
}

/// How one corpus is balanced.
#[derive(Clone, Debug, PartialEq)]
pub struct BalanceConfig {
    /// What may be changed.
    pub freeze: Freeze,

    /// Servers that every slice should have.
    pub replicas_min: usize,
    /// Servers that a hot slice may have; 1 forbids replication.
    pub replicas_max: usize,
    /// A key of its own gets more replicas while one of them would carry more
    /// than this part of the fair load because of it.
    pub replicate_above: f64,
    /// It loses one when the rest would each carry less than this.
    pub dereplicate_below: f64,
    /// And not before it has kept its replicas for this long.
    pub replica_hold: Duration,

    /// Key space, and resident bytes, that may move in one round (parts of the
    /// whole). What the death of servers forces is not counted.
    pub churn_max: f64,
    /// The part of it that merging may use.
    pub merge_churn_max: f64,
    /// Moves in one round.
    pub moves_max: usize,
    /// A slice that has changed servers is left alone for this long.
    pub cooldown: Duration,
    /// A server that gave keys away does not get them back for this long,
    /// unless death or draining leaves no other choice.
    pub no_return: Duration,
    /// Only for this long once servers have come or gone: what was right
    /// before need not be so any more.
    pub no_return_after_change: Duration,

    /// A server above it gives.
    pub give_above: f64,
    /// A server that takes stays at or below it, or else clearly below what
    /// the giver has left.
    pub take_up_to: f64,
    /// A server below it is given something though nobody is above
    /// `give_above` (it has just joined).
    pub cold_below: f64,
    /// How clearly: the giver has this much more left.
    pub margin: f64,
    /// CPU utilisation spread over the key space by width, added to what is
    /// measured: while there is hardly any load, the key space is balanced.
    pub cpu_prior: f64,
    /// Memory is balanced as if at least this part of all of it were in use:
    /// while there is plenty, it is no reason to move anything, and none not
    /// to.
    pub bytes_floor: f64,
    /// Part of a server's memory that moves may fill (more if all servers are
    /// that full already: they evict).
    pub fill_max: f64,

    /// A slice above this part of the fair load is split.
    pub split_above: f64,
    /// A key above this part of the fair load gets a slice of its own.
    pub isolate_above: f64,
    /// Neighbours are merged if they stay below this part of the fair load.
    pub merge_below: f64,
    /// Merging begins at this many slices for each server,
    pub merge_from: usize,
    /// splitting and isolating end at this many.
    pub split_until: usize,

    /// Half of a change in load is believed after this long at the earliest, however many
    /// requests it was seen in.
    pub half_life: Duration,
    /// Half of it is believed after this long at the latest, however few. In between, a
    /// report weighs as its part of all requests that the belief rests on: one second of ten
    /// requests says so little that chance would move keys to and fro.
    pub half_life_max: Duration,
    /// The belief rests on no more requests of an average server than this, so that a fleet
    /// with many of them follows soon.
    pub evidence_max: f64,
    /// Behind so many requests of an average server, what is measured counts as much as the
    /// key space: half of the load is taken to be spread over it evenly. Behind fewer it is
    /// more.
    pub evidence_half: f64,
    /// A server not heard of for this long is left as it is.
    pub stale_after: Duration,
}

impl Default for BalanceConfig {
    fn default() -> Self {
        BalanceConfig {
            freeze: Freeze::Off,
            replicas_min: 1,
            replicas_max: 1,
            replicate_above: 0.4,
            dereplicate_below: 0.2,
            replica_hold: Duration::from_secs(60),
            churn_max: 0.09,
            merge_churn_max: 0.01,
            moves_max: 256,
            cooldown: Duration::from_secs(5),
            no_return: Duration::from_secs(600),
            no_return_after_change: Duration::from_secs(20),
            give_above: 1.12,
            take_up_to: 1.04,
            cold_below: 0.75,
            margin: 0.05,
            cpu_prior: 0.005,
            bytes_floor: 0.5,
            fill_max: 0.95,
            split_above: 0.06,
            isolate_above: 0.06,
            merge_below: 0.02,
            merge_from: 60,
            split_until: 150,
            half_life: Duration::from_millis(500),
            half_life_max: Duration::from_secs(60),
            evidence_max: 1000.0,
            evidence_half: 300.0,
            stale_after: Duration::from_secs(4),
        }
    }
}

impl BalanceConfig {
    /// Checks that the thresholds fit together: most of them come in pairs
    /// whose distance keeps one phase from undoing what another did.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let rules: [(bool, &'static str); 14] = [
            (
                self.replicas_min >= 1 && self.replicas_min <= self.replicas_max,
                "replicas_min has to be at least 1 and at most replicas_max",
            ),
            (
                positive(self.dereplicate_below) && self.dereplicate_below < self.replicate_above,
                "dereplicate_below has to be above 0 and below replicate_above",
            ),
            (
                positive(self.churn_max) && self.churn_max <= 1.0,
                "churn_max has to be above 0 and at most 1",
            ),
            (
                self.merge_churn_max >= 0.0 && self.merge_churn_max <= self.churn_max,
                "merge_churn_max has to be from 0 to churn_max",
            ),
            (self.moves_max >= 1, "moves_max has to be at least 1"),
            (
                self.take_up_to >= 1.0 && self.take_up_to < self.give_above,
                "take_up_to has to be at least 1 and below give_above",
            ),
            (
                self.cold_below >= 0.0 && self.cold_below < 1.0,
                "cold_below has to be from 0 to below 1",
            ),
            (positive(self.margin), "margin has to be above 0"),
            (
                positive(self.cpu_prior) && positive(self.bytes_floor) && self.bytes_floor <= 1.0,
                "cpu_prior has to be above 0, and bytes_floor above 0 and at most 1",
            ),
            (
                positive(self.fill_max) && self.fill_max <= 1.0,
                "fill_max has to be above 0 and at most 1",
            ),
            (
                positive(self.merge_below)
                    && self.merge_below < self.split_above
                    && self.merge_below < self.isolate_above,
                "merge_below has to be above 0 and below split_above and isolate_above",
            ),
            (
                self.merge_from >= 1 && self.merge_from <= self.split_until,
                "merge_from has to be at least 1 and at most split_until",
            ),
            (
                self.half_life <= self.half_life_max,
                "half_life has to be at most half_life_max",
            ),
            (
                [self.evidence_max, self.evidence_half]
                    .iter()
                    .all(|count| *count >= 0.0 && count.is_finite()),
                "evidence_max and evidence_half have to be numbers of requests, 0 or more",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(ConfigError(rule)),
            None => Ok(()),
        }
    }
}

fn positive(value: f64) -> bool {
    value > 0.0 && value.is_finite()
}

/// Thresholds that contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("balancing cannot be configured like this: {0}")]
pub struct ConfigError(pub &'static str);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_fit_together() {
        assert_eq!(BalanceConfig::default().validate(), Ok(()));
    }

    #[test]
    fn contradictions_are_named() {
        let config = BalanceConfig {
            take_up_to: 1.2,
            ..BalanceConfig::default()
        };
        assert_eq!(
            config.validate().unwrap_err().to_string(),
            "balancing cannot be configured like this: take_up_to has to be at least 1 and below give_above"
        );
        let config = BalanceConfig {
            churn_max: f64::NAN,
            ..BalanceConfig::default()
        };
        assert!(config.validate().is_err());
    }
}
