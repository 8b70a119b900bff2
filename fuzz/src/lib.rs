//! What fuzz targets share.

pub mod input;
pub mod session;
