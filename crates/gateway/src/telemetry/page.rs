//! The tables of docs/metrics.md, written from the table of families.

use std::fmt::Write;

use super::families::table;
use super::family::Row;

/// Headings by how a name begins, in the page's order; the last takes the rest.
const SECTIONS: [(&[&str], &str); 7] = [
    (&["smg_http_"], "HTTP"),
    (&["smg_router_"], "Inference requests"),
    (&["smg_pd_"], "Prefill/decode"),
    (&["smg_worker_"], "Workers"),
    (&["smg_"], "Admission and logging"),
    (&["gateway_", "pd_"], "AIBrix's"),
    (&[""], "Baton's own"),
];

/// One section and table for each group of families.
pub fn families_page() -> String {
    let begins = |row: &Row, starts: &[&str]| starts.iter().any(|start| row.name.starts_with(start));
    let section_of = |row: &Row| SECTIONS.iter().position(|(starts, _)| begins(row, starts));
    let mut page = String::new();
    for (at, (_, title)) in SECTIONS.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(
            page,
            "\n### {title}\n\n| name | type | labels | unit | what it says | from |\n|---|---|---|---|---|---|\n"
        );
        for row in table().filter(|row| section_of(row) == Some(at)) {
            let labels: Vec<String> = row.labels.iter().map(|label| format!("`{label}`")).collect();
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} | {} | {} |",
                row.name,
                row.kind,
                labels.join(", "),
                row.unit,
                row.help,
                row.source.as_str()
            );
        }
    }
    page
}
