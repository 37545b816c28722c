//! baton-sim
