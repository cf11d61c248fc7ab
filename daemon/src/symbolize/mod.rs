//! stub
pub mod files;
