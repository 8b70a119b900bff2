//! The checker, on histories made up for it. Histories of real cells are made
//! by `trefoil histories`.

mod rules;
