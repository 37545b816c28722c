//! The small policies, walked through every short sequence of what can happen to them.
//!
//! What must hold is said in terms of the whole history, not of the state that the code keeps of it.

mod admission;
mod breaker;
mod health;
mod retry;
