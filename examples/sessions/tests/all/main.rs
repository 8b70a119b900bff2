//! The tests of the session store, as one program.

mod kills;
