//! What the gateway tells about itself: metrics, the access log, spans, all made from one [`Record`] an exchange.
//!
//! Whoever carries requests writes no metric and no access log line: it hands the record in when the exchange ends, and
//! [`Telemetry::record`] is the one place that turns it into counts. What is not part of an exchange (legs that outlive
//! it, releases, resends) comes in through [`Background`]. What has a value at any moment (load, health, breakers) is
//! read when somebody looks, see [`scrape`].
//!
//! It does not know how a request is carried, and nothing waits for it: recording takes no lock and cannot fail.

mod access;
mod background;
mod counting;
mod families;
mod family;
mod labels;
pub mod log;
mod page;
mod scrape;
mod series;
mod serve;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use baton_core::fleet::Fleet;
use baton_core::record::Record;
use prometheus::Registry;
use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

pub use access::ExchangeSpan;
pub use background::{Background, DetachedLeg, HandoffOut, LegEnd};
pub use counting::{MAX_KEPT, Policies};
pub use family::{BadFamily, MAX_LABEL_SETS};
pub use page::families_page;
pub use scrape::{Charged, Indexes, Live};
pub use serve::serve;

use counting::Counting;
use families::{Recorded, Scraped};
use family::Buckets;

/// The content type of what [`Telemetry::render`] returns.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Bounds of duration histograms, in seconds: SMG's (its metrics reference).
const DURATIONS: [f64; 29] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 45.0, 60.0, 90.0,
    120.0, 180.0, 240.0, 300.0, 480.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0, 5400.0, 7200.0,
];

/// Bounds of waits between attempts, in seconds; the longest wait is 30 s unless configured otherwise.
const WAITS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// What telemetry is made of and looks at.
pub struct Setup {
    /// Bounds of duration histograms, in seconds, rising. Empty: SMG's.
    pub duration_buckets: Vec<f64>,
    pub policies: Policies,
    /// The fleet as it is now. Asked at each scrape, and for a model that is new.
    pub fleet: Box<dyn Fn() -> Arc<Fleet> + Send + Sync>,
    /// Counts that only the edge knows. Asked at each scrape.
    pub live: Box<dyn Fn() -> Live + Send + Sync>,
    pub log_drops: log::Drops,
}

/// Turns records into metrics and log lines.
pub struct Telemetry {
    registry: Registry,
    counting: Counting,
    background: Background,
    fleet: Box<dyn Fn() -> Arc<Fleet> + Send + Sync>,
    live: Box<dyn Fn() -> Live + Send + Sync>,
    log_drops: log::Drops,
}

impl Telemetry {
    /// # Errors
    /// [`BadFamily`] if the bucket bounds do not rise.
    pub fn new(setup: Setup) -> Result<Telemetry, BadFamily> {
        let Setup { duration_buckets, policies, fleet, live, log_drops } = setup;
        let durations = if duration_buckets.is_empty() { DURATIONS.to_vec() } else { duration_buckets };
        let registry = Registry::new();
        let all = Arc::new(Recorded::new(&Buckets { durations, waits: WAITS.to_vec() }, &registry)?);
        let background = Background::new(&all);
        Ok(Telemetry { registry, counting: Counting::new(all, policies), background, fleet, live, log_drops })
    }

    /// The exchange is over and this is all that is known of it.
    pub fn record(&self, record: &Record) {
        self.counting.record(record, &self.fleet);
        access::write(record);
    }

    /// For what is no part of an exchange.
    pub fn background(&self) -> &Background {
        &self.background
    }

    /// Every count that is not zero, by its name and labels as they stand in the text format.
    pub fn counts(&self) -> Vec<(String, f64)> {
        let families = self.registry.gather();
        let counters = families.iter().filter(|family| family.get_field_type() == MetricType::COUNTER);
        let of_family = |family: &MetricFamily| -> Vec<(String, f64)> {
            let name = family.name();
            let sample = |metric: &Metric| {
                let label = |pair: &LabelPair| format!("{}={:?}", pair.name(), pair.value());
                let labels: Vec<String> = metric.get_label().iter().map(label).collect();
                let labels =
                    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
                (format!("{name}{labels}"), metric.get_counter().get_value())
            };
            family.get_metric().iter().map(sample).collect()
        };
        counters.flat_map(of_family).filter(|(_, value)| *value != 0.0).collect()
    }

    /// All metrics in Prometheus' text format 0.0.4.
    pub fn render(&self) -> String {
        let fleet = (self.fleet)();
        let here: BTreeSet<&str> = fleet.seats().map(|seat| seat.worker.url.as_str()).collect();
        let pods: BTreeSet<&str> = fleet.seats().map(|seat| seat.worker.pod_name()).collect();
        self.counting.retire(|url| here.contains(url), |pod| pods.contains(pod));
        scrape::seed(&fleet, self.counting.families());
        let scraped = Scraped::default();
        scrape::read(&fleet, &scraped);
        let live = (self.live)();
        scrape::views(&fleet, live.now, &scraped);
        if live.engine_metrics {
            scrape::engines(&fleet, &scraped);
        }
        live.show(&scraped);
        scraped.detached.set([], self.background.detached_now() as f64);
        scraped.handoffs_out.set([], self.background.handoffs_out() as f64);
        scrape::lists(&fleet, &self.background.lists(), &scraped);
        for (sink, lines) in self.log_drops.lines() {
            scraped.log_dropped.set([sink], lines as f64);
        }
        scrape::text(&self.registry, &scraped)
    }
}
