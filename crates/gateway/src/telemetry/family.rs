//! What a metric family is, and the macros that write the table of them.
//!
//! One row gives a family everything it has: its name, type, labels, unit, source and help text. The place where it is
//! counted, its `# HELP` and `# TYPE` lines and its line in docs/metrics.md are made from the row, so that they cannot
//! disagree. Recorded families live as long as the process; scraped ones are built from the fleet each time somebody
//! looks, so that a series of a removed worker has nowhere to stay behind.
//!
//! The number of label sets of a family has a bound ([`MAX_LABEL_SETS`]): a set beyond it counts under `other`.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use baton_core::time::{Duration, Instant};
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry,
};

/// Label sets of one family. Those that come later count in one series whose labels all are `other`.
pub const MAX_LABEL_SETS: usize = 4096;

/// The value of a label whose true value is not one of those that are listed.
pub const OTHER: &str = "other";

/// Where a family's name and meaning come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// SMG's page on PD disaggregation, section Monitoring.
    SmgPd,
    /// SMG's metrics reference.
    Smg,
    /// AIBrix's page on PD disaggregation, and its gateway.
    Aibrix,
    /// Nobody else has it.
    Baton,
}

impl Source {
    pub fn as_str(self) -> &'static str {
        match self {
            Source::SmgPd => "SMG, PD disaggregation, Monitoring",
            Source::Smg => "SMG, metrics reference",
            Source::Aibrix => "AIBrix",
            Source::Baton => "Baton",
        }
    }
}

/// One family, as the table has it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    pub labels: &'static [&'static str],
    pub unit: &'static str,
    pub source: Source,
    pub help: &'static str,
}

impl Row {
    fn opts(&self) -> Opts {
        Opts::new(self.name, self.help)
    }
}

/// Bounds of the two sorts of histogram, in seconds.
pub struct Buckets {
    pub durations: Vec<f64>,
    pub waits: Vec<f64>,
}

/// A family could not be made: bucket bounds that do not rise.
#[derive(Debug, thiserror::Error)]
#[error("metric {name}: {cause}")]
pub struct BadFamily {
    name: &'static str,
    cause: prometheus::Error,
}

/// The label sets that a family has so far.
pub struct LabelSets<const N: usize>(Mutex<BTreeSet<[Box<str>; N]>>);

impl<const N: usize> Default for LabelSets<N> {
    fn default() -> Self {
        LabelSets(Mutex::default())
    }
}

impl<const N: usize> LabelSets<N> {
    /// The set under which `values` count.
    fn admit<'a>(&self, values: [&'a str; N]) -> [&'a str; N] {
        let mut sets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let owned = values.map(Box::from);
        if sets.contains(&owned) {
            return values;
        }
        if sets.len() >= MAX_LABEL_SETS {
            return [OTHER; N];
        }
        sets.insert(owned);
        values
    }

    /// Takes out the sets that `keep` does not want.
    fn retire(&self, keep: impl Fn(&[Box<str>; N]) -> bool) -> Vec<[Box<str>; N]> {
        let mut sets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<_> = sets.iter().filter(|set| !keep(set)).cloned().collect();
        for set in &gone {
            sets.remove(set);
        }
        gone
    }
}

/// One counter's value. Counts nothing if its series could not be made.
#[derive(Clone)]
pub struct Count(Option<IntCounter>);

impl Count {
    pub fn add(&self, n: u64) {
        if let Some(counter) = &self.0 {
            counter.inc_by(n);
        }
    }

    pub fn one(&self) {
        self.add(1);
    }

    pub fn get(&self) -> u64 {
        self.0.as_ref().map_or(0, IntCounter::get)
    }
}

/// One histogram of durations.
#[derive(Clone)]
pub struct Timing(Option<Histogram>);

impl Timing {
    pub fn took(&self, duration: Duration) {
        if let Some(histogram) = &self.0 {
            histogram.observe(duration.as_secs_f64());
        }
    }

    /// Nothing if one of the moments was not reached, or if they came in the other order.
    pub fn between(&self, from: Option<Instant>, to: Option<Instant>) {
        if let (Some(from), Some(to)) = (from, to)
            && from <= to
        {
            self.took(to.since(from));
        }
    }
}

/// Counters with `N` labels, in the order of the table.
pub struct Counters<const N: usize> {
    series: IntCounterVec,
    sets: LabelSets<N>,
}

impl<const N: usize> Counters<N> {
    pub const KIND: &'static str = "counter";

    pub fn new(row: &Row, _: &Buckets, registry: &Registry) -> Result<Self, BadFamily> {
        let made = IntCounterVec::new(row.opts(), row.labels).and_then(|series| {
            registry.register(Box::new(series.clone()))?;
            Ok(Counters { series, sets: LabelSets::default() })
        });
        made.map_err(|cause| BadFamily { name: row.name, cause })
    }

    /// The counter under these label values. Keep it: looking it up costs a lock.
    pub fn of(&self, values: [&str; N]) -> Count {
        Count(self.series.get_metric_with_label_values(&self.sets.admit(values)).ok())
    }

    /// Ends the series that `keep` does not want. True if there were any.
    pub fn retire(&self, keep: impl Fn(&[Box<str>; N]) -> bool) -> bool {
        let gone = self.sets.retire(keep);
        for set in &gone {
            // Fails only if it was not there.
            let _ = self.series.remove_label_values(set);
        }
        !gone.is_empty()
    }
}

/// Histograms with `N` labels, in the order of the table.
pub struct Histograms<const N: usize> {
    series: HistogramVec,
    sets: LabelSets<N>,
}

impl<const N: usize> Histograms<N> {
    pub const KIND: &'static str = "histogram";

    pub fn new(row: &Row, buckets: &Buckets, registry: &Registry) -> Result<Self, BadFamily> {
        let bounds = if row.name.ends_with("_backoff_seconds") { &buckets.waits } else { &buckets.durations };
        let opts = HistogramOpts { common_opts: row.opts(), buckets: bounds.clone() };
        let made = HistogramVec::new(opts, row.labels).and_then(|series| {
            registry.register(Box::new(series.clone()))?;
            Ok(Histograms { series, sets: LabelSets::default() })
        });
        made.map_err(|cause| BadFamily { name: row.name, cause })
    }

    /// The histogram under these label values. Keep it: looking it up costs a lock.
    pub fn of(&self, values: [&str; N]) -> Timing {
        Timing(self.series.get_metric_with_label_values(&self.sets.admit(values)).ok())
    }
}

/// Gauges that are read off the fleet when somebody looks.
pub struct Gauges<const N: usize>(Option<GaugeVec>);

impl<const N: usize> Gauges<N> {
    pub const KIND: &'static str = "gauge";

    pub fn new(row: &Row) -> Self {
        Gauges(GaugeVec::new(row.opts(), row.labels).ok())
    }

    pub fn set(&self, values: [&str; N], value: f64) {
        if let Some(gauge) = self.0.as_ref().and_then(|g| g.get_metric_with_label_values(&values).ok()) {
            gauge.set(value);
        }
    }

    /// Of several that have the same labels, the sum.
    pub fn add(&self, values: [&str; N], value: f64) {
        if let Some(gauge) = self.0.as_ref().and_then(|g| g.get_metric_with_label_values(&values).ok()) {
            gauge.add(value);
        }
    }

    pub fn collect(&self) -> Vec<MetricFamily> {
        self.0.as_ref().map(Collector::collect).unwrap_or_default()
    }
}

/// Counts that the fleet keeps and that are read off it when somebody looks.
pub struct Totals<const N: usize>(Option<IntCounterVec>);

impl<const N: usize> Totals<N> {
    pub const KIND: &'static str = "counter";

    pub fn new(row: &Row) -> Self {
        Totals(IntCounterVec::new(row.opts(), row.labels).ok())
    }

    pub fn add(&self, values: [&str; N], n: u64) {
        if let Some(counter) = self.0.as_ref().and_then(|c| c.get_metric_with_label_values(&values).ok()) {
            counter.inc_by(n);
        }
    }

    pub fn collect(&self) -> Vec<MetricFamily> {
        self.0.as_ref().map(Collector::collect).unwrap_or_default()
    }
}

impl fmt::Debug for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.as_ref().map(IntCounter::get))
    }
}

/// `field: Type "name" [labels], "unit", Source;` with the help text as its doc comment.
macro_rules! row {
    ($($help:literal)+, $kind:ident, $name:literal, [$($label:ident)*], $unit:literal, $source:ident) => {
        $crate::telemetry::family::Row {
            name: $name,
            kind: $kind::<{ row!(@count $($label)*) }>::KIND,
            labels: &[$(stringify!($label)),*],
            unit: $unit,
            source: $crate::telemetry::family::Source::$source,
            help: concat!($($help),+).trim_ascii(),
        }
    };
    (@count $($label:ident)*) => { <[&str]>::len(&[$(stringify!($label)),*]) };
}

macro_rules! recorded {
    ($($(#[doc = $help:literal])+ $field:ident: $kind:ident $name:literal [$($label:ident),*], $unit:literal, $source:ident;)*) => {
        /// Families that are counted as things happen.
        pub struct Recorded {
            $($(#[doc = $help])+ pub $field: $kind<{ row!(@count $($label)*) }>,)*
        }

        impl Recorded {
            pub const ROWS: &'static [Row] = &[$(row!($($help)+, $kind, $name, [$($label)*], $unit, $source)),*];

            /// # Errors
            /// [`BadFamily`] if the bucket bounds are none.
            pub fn new(buckets: &Buckets, registry: &Registry) -> Result<Recorded, BadFamily> {
                Ok(Recorded {
                    $($field: $kind::new(&row!($($help)+, $kind, $name, [$($label)*], $unit, $source), buckets, registry)?,)*
                })
            }
        }
    };
}

macro_rules! scraped {
    ($($(#[doc = $help:literal])+ $field:ident: $kind:ident $name:literal [$($label:ident),*], $unit:literal, $source:ident;)*) => {
        /// Families that are made when somebody looks.
        pub struct Scraped {
            $($(#[doc = $help])+ pub $field: $kind<{ row!(@count $($label)*) }>,)*
        }

        impl Scraped {
            pub const ROWS: &'static [Row] = &[$(row!($($help)+, $kind, $name, [$($label)*], $unit, $source)),*];

            pub fn collect(&self) -> Vec<MetricFamily> {
                let mut all = Vec::new();
                $(all.extend(self.$field.collect());)*
                all
            }
        }

        impl Default for Scraped {
            fn default() -> Self {
                Scraped { $($field: $kind::new(&row!($($help)+, $kind, $name, [$($label)*], $unit, $source)),)* }
            }
        }
    };
}

pub(super) use {recorded, row, scraped};
