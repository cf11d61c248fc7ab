//! The suite of all stores, for the engines that need nothing but this crate.
//!
//! Another engine is one line more: `suite!(embedded, crate::EmbeddedEngine);` with an [`Engine`]
//! that makes a temporary directory and opens a store in it.
//!
//! [`Engine`]: store::Engine

mod store;

use collector::store::Store;
use std::sync::Arc;
use store::model::Model;
use store::{Engine, Place};

// The oracle itself.
suite!(model, crate::InMemory);

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
