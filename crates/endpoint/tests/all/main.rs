//! The tests of the port, as one program.

mod answers;
