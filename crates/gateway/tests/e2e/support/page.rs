//! The metrics page, read.

use std::net::SocketAddr;

use baton_core::exchange::Fate;

use super::Reply;

/// The samples of one scrape.
pub struct Page(Vec<(String, String, f64)>);

impl Page {
    pub async fn fetch(address: SocketAddr) -> Page {
        let reply = Reply::get(address, "/metrics").await;
        assert_eq!(reply.status, 200);
        let text = reply.text();
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            let (name, labels) = name.split_once('{').unwrap_or((name, ""));
            Some((name.to_owned(), labels.trim_end_matches('}').to_owned(), value.parse().ok()?))
        });
        Page(samples.collect())
    }

    /// The sum of a family's samples that have all these labels, each as `name="value"`.
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let wanted = |l: &str| labels.iter().all(|want| l.contains(want));
        let found: Vec<f64> = self.0.iter().filter(|(n, l, _)| n == name && wanted(l)).map(|s| s.2).collect();
        found.iter().sum()
    }

    /// Every sample of these gauges that is not zero.
    pub fn not_zero(&self, names: &[&str]) -> Vec<String> {
        let left = self.0.iter().filter(|(name, _, value)| names.contains(&name.as_str()) && *value != 0.0);
        left.map(|(name, labels, value)| format!("{name}{{{labels}}} {value}")).collect()
    }

    /// Every sample of these families that is not zero, by its name and labels.
    pub fn samples(&self, names: &[&str]) -> std::collections::BTreeMap<String, f64> {
        let some = self.0.iter().filter(|(name, _, value)| names.contains(&name.as_str()) && *value != 0.0);
        some.map(|(name, labels, value)| {
            let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            (format!("{name}{labels}"), *value)
        })
        .collect()
    }

    /// What became of hand-offs, such as `consumed 3, released 1`.
    pub fn fates(&self) -> String {
        let name = "baton_handoffs_ended_total";
        let ended =
            Fate::ALL.map(|fate| (fate.as_str(), self.sum(name, &[&format!("\"{}\"", fate.as_str())])));
        let some = ended.into_iter().filter(|(_, count)| *count > 0.0);
        some.map(|(fate, count)| format!("{fate} {count}")).collect::<Vec<_>>().join(", ")
    }

    /// Whether the family has a sample at all.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(n, _, _)| n == name)
    }
}
