//! Real files to names.
