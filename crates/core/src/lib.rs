//! baton-core

pub mod body;
