//! docs/metrics.md has the table of families between two marks.

use expect_test::expect_file;

const PAGE: &str = include_str!("../../../../../docs/metrics.md");
const BEGIN: &str = "<!-- families: written by a test, see the end of this page -->\n";
const END: &str = "<!-- families end -->";

#[test]
fn the_page_has_the_table() {
    let (before, rest) = PAGE.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let page = [before, BEGIN, &super::families_page(), "\n", END, after].concat();
    expect_file!["../../../../../docs/metrics.md"].assert_eq(&page);
}

#[test]
fn the_page_names_the_bounds() {
    for bound in [super::MAX_LABEL_SETS.to_string(), super::DURATIONS.map(|b| b.to_string()).join(" ")] {
        assert!(PAGE.contains(&bound), "{bound}");
    }
}
