//! What faces the clients.

pub mod admin;
