//! What the registry takes from the configuration.

use std::time::Duration;

use baton_core::fleet::{Connector, HealthRule, PairingMode};
use baton_core::handoff;

use super::spec::Spec;
use crate::clock::Clock;
use crate::config::{self, Config};
use crate::discovery;

/// Most workers at once. A fleet is walked for each placement, and its pairs for each change.
pub const WORKERS_MAX: usize = 4096;

/// Settings of a registry.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The workers known at start.
    pub workers: Vec<Spec>,
    pub pairing: PairingMode,
    /// An engine with several data-parallel ranks becomes as many workers. SMG `--dp-aware`.
    pub dp_aware: bool,
    pub checks: Checks,
    /// How long a worker that is being removed may finish its requests.
    pub drain_settle: Duration,
    /// New workers looked at for the first time at once. SMG `--job-queue-concurrency`.
    pub jobs_at_once: usize,
    /// New workers that may wait for their first look. SMG `--job-queue-capacity`.
    pub jobs_waiting: usize,
    /// Remove workers that failed. None: those that were discovered. SMG `--remove-unhealthy-workers`.
    pub remove_failed: Option<bool>,
    /// Which workers are asked for what their hand-off needs.
    pub handoff: handoff::Rules,
    pub clock: Clock,
    /// Seeds the spread of health checks.
    pub seed: u64,
}

/// How workers are asked whether they are well.
#[derive(Clone, Debug)]
pub struct Checks {
    /// The path that is asked. SMG `--health-check-endpoint`.
    pub endpoint: String,
    pub interval: Duration,
    pub timeout: Duration,
    pub rule: HealthRule,
    /// Workers are ready as soon as they are registered, and are not asked.
    pub disabled: bool,
    /// After this time an unreachable new worker counts as failed; it is still asked at `interval`.
    pub startup_timeout: Duration,
    /// Time before the first question to a new worker.
    pub startup_delay: Duration,
    /// Longest time between two questions to a new worker.
    pub startup_interval: Duration,
}

impl Default for Checks {
    fn default() -> Checks {
        Checks::of(&Config::default())
    }
}

impl Checks {
    fn of(config: &Config) -> Checks {
        let (health, workers) = (&config.health, &config.workers);
        Checks {
            endpoint: health.endpoint.clone(),
            interval: health.interval,
            timeout: health.timeout,
            rule: HealthRule {
                success_threshold: health.success_threshold.get(),
                failure_threshold: health.failure_threshold.get(),
            },
            disabled: health.disabled,
            startup_timeout: workers.startup_timeout,
            startup_delay: workers.startup_delay,
            startup_interval: workers.startup_check_interval,
        }
    }
}

impl Settings {
    pub fn of(config: &Config, clock: Clock, seed: u64) -> Settings {
        Settings {
            workers: discovery::configured(config),
            pairing: match config.workers.pairing_mode {
                config::PairingMode::Off => PairingMode::Off,
                config::PairingMode::Lenient => PairingMode::Lenient,
                config::PairingMode::Strict => PairingMode::Strict,
            },
            dp_aware: config.workers.dp_aware,
            checks: Checks::of(config),
            drain_settle: config.workers.drain_settle,
            jobs_at_once: config.limits.job_queue_concurrency.get(),
            jobs_waiting: config.limits.job_queue_capacity.get(),
            remove_failed: config.health.remove_unhealthy_workers,
            handoff: handoff_rules(config),
            clock,
            seed,
        }
    }
}

fn handoff_rules(config: &Config) -> handoff::Rules {
    let named = config.handoff.kv_connector_type.map(config::KvConnectorType::as_str);
    let generation_first = config.handoff.trt_schedule_style == config::TrtScheduleStyle::GenerationFirst;
    let trt = handoff::TrtRule { generation_first, machine: config.handoff.trt_machine_id };
    handoff::Rules { kv_connector: named.and_then(Connector::from_aibrix), trt }
}
