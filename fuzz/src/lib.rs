//! What fuzz targets share.

pub mod session;
