//! Basics shared by all stages of the agent: ids, time, frames, facts about the host, and system
//! calls.
//!
//! It uses no other crate of the agent, and of `profile` only the words.

pub mod blocking_pool;
pub mod bounds;
pub mod cpus;
pub mod facts;
pub mod frame;
pub mod health;
pub mod heartbeat;
pub mod ids;
pub mod private_dir;
pub mod proc;
pub mod sync;
pub mod sys;
pub mod time;
