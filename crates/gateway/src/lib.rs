//! baton-gateway
