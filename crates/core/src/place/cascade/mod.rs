//! AIBrix's `pd` strategy, a cascade of steps, each a plain function of plain numbers.
//!
//! Settings come from the environment and the model's config ([`knobs`], [`profile`], [`words`]). Two fast paths
//! look for loads so uneven that nothing else counts ([`fast`]), adaptive bucket serving prefers a roleset by the
//! prompt's length ([`serve`], [`bands`]), scores rank who is left ([`score`]), and the cheapest pair of one roleset
//! wins ([`pick`]). Two scores go by tokens that workers are charged with ([`ledger`], [`sessions`]).
//!
//! Not yet a [`super::Strategy`]: nothing here sees the fleet.

pub mod bands;
pub mod fast;
pub mod knobs;
pub mod ledger;
pub mod pick;
pub mod profile;
pub mod read;
pub mod score;
pub mod serve;
pub mod sessions;
pub mod sight;
pub mod traffic;
pub mod words;
