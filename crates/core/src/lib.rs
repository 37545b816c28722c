//! baton-core
