//! What a run found wrong.

use crate::whole::Scene;
use std::fmt;

/// Which part of the promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Property {
    /// A hit is older than a mutation acknowledged before the GET began.
    Fresh,
    /// A hit is older than a hit, of any client, that ended before the GET began.
    Monotone,
    /// A CAS that was reported failed was seen.
    Failed,
    /// Something between what a successful CAS expected and its own version
    /// was acknowledged or seen.
    Exact,
    /// A mutation that was reported as not done at all was seen.
    Ghost,
    /// A fill replaced what was acknowledged and had begun after its miss.
    StaleFill,
    /// A hit's bytes are not what was written at its version.
    Value,
    /// Nothing failed (no loss, no crash, no eviction) and nobody else was at
    /// work, but a GET found no quorum.
    Quorum,
    /// The same, but it found nothing, although the last mutation had stored
    /// something.
    Kept,
    /// The same with one backend dead: a key on which the others disagree was no
    /// missing key to a CAS at its first attempt.
    Healed,
    /// A value of a former life of the cell was hit.
    FormerLife,
    /// Something was hit that a flush had removed before the GET began.
    Flushed,
    /// An operation ended long after its deadline, or has not.
    Late,
    /// Nothing is under way, but an operation keeps its place, or a carrier is
    /// waited for.
    Leak,
    /// A backend moved to another process, which does not know all that the former knew.
    Moved,
    /// A store's own account does not add up.
    Store,
    /// An operation waits for nothing.
    Stuck,
    /// Something panicked.
    Panic,
}

impl Property {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Property::Fresh => "fresh",
            Property::Monotone => "monotone",
            Property::Failed => "failed",
            Property::Exact => "exact",
            Property::Ghost => "ghost",
            Property::StaleFill => "stale_fill",
            Property::Value => "value",
            Property::Quorum => "quorum",
            Property::Kept => "kept",
            Property::Healed => "healed",
            Property::FormerLife => "former_life",
            Property::Flushed => "flushed",
            Property::Late => "late",
            Property::Leak => "leak",
            Property::Moved => "moved",
            Property::Store => "store",
            Property::Stuck => "stuck",
            Property::Panic => "panic",
        }
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What was simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// The machines of `trefoil-client-core`, each message by itself.
    Protocol,
    /// The client's driver ([`crate::whole`]); in a scene of a test.
    Whole(Option<Scene>),
}

/// A history that breaks the promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The run.
    pub seed: u64,
    /// Of which form.
    pub form: Form,
    /// What was broken.
    pub property: Property,
    /// How, in one sentence.
    pub message: String,
    /// The steps that concern the key, up to the violation; the last ones only
    /// if there are many. Empty if the run was not traced.
    pub history: Vec<String>,
}

impl Violation {
    /// The command that replays it with a trace of all steps.
    pub fn replay(&self) -> String {
        match self.form {
            Form::Protocol => format!("trefoil sim --seed {}", self.seed),
            Form::Whole(None) => format!("trefoil sim --whole --seed {}", self.seed),
            Form::Whole(Some(scene)) => {
                format!(
                    "trefoil_sim::whole::run_scene({scene:?}, {}, 1, 1)",
                    self.seed
                )
            }
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: property \"{}\" is violated: {}",
            self.seed, self.property, self.message
        )?;
        for line in &self.history {
            writeln!(f, "  {line}")?;
        }
        write!(f, "replay: {}", self.replay())
    }
}

impl std::error::Error for Violation {}
