//! The suite of all stores, for the engines that need nothing but this crate.
//!
//! Another engine is one line more: `suite!(embedded, crate::EmbeddedEngine);` with an [`Engine`]
//! that makes a temporary directory and opens a store in it.
//!
//! [`Engine`]: store::Engine

mod store;

// The oracle itself.
suite!(model, crate::store::model::ModelEngine);
