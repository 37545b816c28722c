//! Keys and headers of Anthropic's clients: which of them the gateway takes, and which reach an engine.

use baton_core::fleet::{Role, Secret};
use baton_sim::Dialect;

use super::{Talk, refusal, refused};
use crate::support::{House, PROMPT, Plan, Reply};

async fn post(house: &House, path: &str, headers: &[(&str, &str)]) -> Reply {
    Reply::post_with(house.address, path, headers, &Talk::messages(PROMPT, 6).body).await
}

/// No engine was shown one of these words in any header.
fn nothing_leaked(house: &House, words: &[&str]) {
    for seen in house.taps.iter().flat_map(|tap| tap.seen()) {
        for (name, value) in &seen.headers {
            let value = value.to_str().unwrap();
            assert!(!words.iter().any(|word| value.contains(word)), "{name}: {value}");
        }
        assert_eq!(seen.header("x-api-key"), "");
    }
}

#[tokio::test]
async fn the_gateways_key_may_come_either_way_and_goes_no_further() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let plan = Plan::pairs(dialect, 1, 1).tapped().arg("--api-key", "gateway-key");
        let plan = plan.registered(|s| {
            if s.role == Role::Prefill {
                s.api_key = Some(Secret::new("worker-key"));
            }
        });
        let mut house = plan.open().await;
        house.no_after();
        for path in ["/v1/messages", "/v1/messages/count_tokens"] {
            for headers in [
                &[("x-api-key", "gateway-key")][..],
                &[("authorization", "Bearer gateway-key")],
                &[("x-api-key", "another"), ("authorization", "Bearer gateway-key")],
                &[("x-api-key", "gateway-key"), ("authorization", "Bearer another")],
            ] {
                let reply = post(&house, path, headers).await;
                assert_eq!(reply.status, 200, "{path} {headers:?}: {}", reply.text());
                assert_eq!(house.taps[0].last().header("authorization"), "Bearer worker-key");
            }
            for headers in [&[("x-api-key", "another")][..], &[("authorization", "Bearer another")], &[]] {
                let reply = post(&house, path, headers).await;
                assert_eq!(refusal(&reply), refused(401, "authentication_error", "invalid_api_key"));
                assert!(reply.header("www-authenticate").starts_with("Bearer"));
            }
        }
        nothing_leaked(&house, &["gateway-key", "another"]);
        house.close().await;
    }
}

#[tokio::test]
async fn without_a_key_of_its_own_the_gateway_passes_authorization_on_and_still_no_x_api_key() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let headers = [("x-api-key", "sk-ant-secret"), ("authorization", "Bearer theirs")];
        assert_eq!(post(&house, path, &headers).await.status, 200);
        assert_eq!(house.taps[0].last().header("authorization"), "Bearer theirs");
        assert_eq!(post(&house, path, &[("x-api-key", "sk-ant-secret")]).await.status, 200);
        assert_eq!(house.taps[0].last().header("authorization"), "");
    }
    nothing_leaked(&house, &["sk-ant-secret"]);
    house.close().await;
}

#[tokio::test]
async fn version_and_betas_reach_both_legs() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = Plan::pairs(dialect, 1, 1).tapped().open().await;
        let headers = [
            ("anthropic-version", "2023-06-01"),
            ("anthropic-beta", "one-2025-01-01,two-2025-01-01"),
            ("anthropic-beta", "three-2025-01-01"),
            ("anthropic-dangerous-direct-browser-access", "true"),
            ("x-stainless-lang", "python"),
        ];
        assert_eq!(post(&house, "/v1/messages", &headers).await.status, 200);
        for tap in &house.taps {
            let seen = tap.last();
            assert_eq!(seen.header("anthropic-version"), "2023-06-01");
            let betas: Vec<&str> =
                seen.headers.get_all("anthropic-beta").iter().map(|v| v.to_str().unwrap()).collect();
            assert_eq!(betas, ["one-2025-01-01,two-2025-01-01", "three-2025-01-01"]);
            assert_eq!(seen.header("anthropic-dangerous-direct-browser-access"), "");
            assert_eq!(seen.header("x-stainless-lang"), "");
        }
        house.close().await;
    }
}
