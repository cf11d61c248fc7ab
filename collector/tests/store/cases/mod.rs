//! The cases of the suite, by what they are about.

pub mod downsampling;
pub mod exact;
pub mod hostile;
pub mod limits;
pub mod naming;
pub mod pushes;
pub mod quality;
pub mod queries;
pub mod random;
pub mod scopes;
pub mod series;
pub mod together;
