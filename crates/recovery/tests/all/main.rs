//! See the modules.

mod handover;
mod machine;
