//! The suite of all stores, for the engines that need nothing but this crate.
//!
//! Another engine is a line more, with an [`Engine`] that makes a place for a store and opens it
//! there.
//!
//! [`Engine`]: store::Engine

#[path = "support/embedded_engine.rs"]
mod embedded_engine;
#[path = "support/random_sums.rs"]
mod random_sums;
mod store;

use collector::store::Store;
use std::sync::Arc;
use store::model::Model;
use store::{Engine, Place};

// The oracle itself.
suite!(model, crate::InMemory);
// As windows come, and with everything in files after every push.
suite!(
    embedded,
    crate::embedded_engine::EmbeddedEngine { flushed: false }
);
suite!(
    embedded_flushed,
    crate::embedded_engine::EmbeddedEngine { flushed: true }
);

/// Makes empty models.
struct InMemory;

/// A model's data, which stays when it is closed.
struct Memory(Model);

impl Engine for InMemory {
    fn place(&self) -> Result<Box<dyn Place>, String> {
        Ok(Box::new(Memory(Model::default())))
    }
}

impl Place for Memory {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }
}
