//! vLLM's own description. Over HTTP it tells its version and its models, and neither its connector nor
//! its KV layout (seen with 0.32.0): those are what the operator registers.

use serde_json::Value;

use super::facts::Facts;

/// `GET /version`. False: not vLLM's answer.
pub fn read_version(page: &Value, facts: &mut Facts) -> bool {
    let version = page.get("version").filter(|v| v.is_string());
    facts.keep("version", version);
    version.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_version_is_a_text() {
        let mut f = Facts::default();
        assert!(!read_version(&json!({"version": 3}), &mut f));
        assert!(!read_version(&json!([]), &mut f));
        assert!(read_version(&json!({"version": "0.32.0"}), &mut f));
        assert_eq!(f.labels["version"], "0.32.0");
    }
}
