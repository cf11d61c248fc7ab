//! The collector's server around a store in memory: what agents, commands and browsers get.

mod alerts;
mod annotations;
mod attacks;
mod captures;
mod confined;
mod connections;
mod exact;
mod fake_provider;
mod faults;
mod hosts;
mod identity;
mod incidents;
mod ingest;
mod kept;
mod lifecycle;
mod links;
mod login;
mod memory;
#[path = "../support/model/mod.rs"]
mod model;
mod names;
mod oidc;
mod outside;
mod overview;
mod page;
mod people;
mod pins;
mod program;
mod query;
mod rig;
mod rotation;
mod scopes;
mod several;
mod symbols;
mod web;
mod webhook;
