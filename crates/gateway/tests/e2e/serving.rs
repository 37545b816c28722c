//! The main job: each API, each engine, streamed and not, with the exact text and a hand-off that really moved.

use baton_sim::text::tokenize;
use baton_sim::{Dialect, FleetSpec, PromptId};
use serde_json::json;

use crate::support::{Ask, House, PROMPT, Plan};

/// A prompt of its own for each request, so that no cache answers for a hand-off.
fn words(at: usize) -> String {
    format!("{PROMPT} number {at}, and then the {at} small fish sing of the river")
}

#[tokio::test]
async fn every_api_of_vllm_gives_the_exact_text_and_moves_the_kv() {
    let house = House::pair(Dialect::Vllm).await;
    for (at, make) in [Ask::chat, Ask::completion].into_iter().enumerate() {
        make(&words(2 * at), 12).served(house.address).await;
        make(&words(2 * at + 1), 40).streamed().served(house.address).await;
    }
    let stats = house.stats().await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right), (4, 4), "{stats:?}");
    let prompts: usize = (0..4).map(|at| tokenize(&words(at)).len()).sum();
    assert!(stats.tokens.transferred as usize >= prompts / 2, "{stats:?}");
    let page = house.page().await;
    assert_eq!(page.sum("baton_handoffs_total", &[r#"result="relayed""#, r#"runtime="vllm""#]), 4.0);
    assert_eq!(page.sum("baton_exchanges_total", &[r#"outcome="served""#]), 4.0);
    house.close().await;
}

#[tokio::test]
async fn every_api_of_sglang_gives_the_exact_text_and_moves_the_kv() {
    let house = House::pair(Dialect::Sglang).await;
    for (at, make) in [Ask::chat, Ask::completion, Ask::generate].into_iter().enumerate() {
        make(&words(2 * at), 12).served(house.address).await;
        make(&words(2 * at + 1), 40).streamed().served(house.address).await;
    }
    let stats = house.stats().await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right, stats.handoffs.failed), (6, 6, 0), "{stats:?}");
    let page = house.page().await;
    assert_eq!(page.sum("baton_handoffs_total", &[r#"result="minted""#, r#"runtime="sglang""#]), 6.0);
    house.close().await;
}

#[tokio::test]
async fn whole_workers_of_both_engines_serve_without_a_hand_off() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = Plan::new(FleetSpec::whole(dialect, 2)).open().await;
        for at in 0..4 {
            Ask::chat(&words(at), 8).served(house.address).await;
            Ask::completion(&words(at), 8).streamed().served(house.address).await;
        }
        let stats = house.stats().await;
        assert_eq!((stats.handoffs.made, stats.requests.accepted), (0, 8), "{stats:?}");
        house.close().await;
    }
}

#[tokio::test]
async fn an_unknown_connector_of_vllm_still_serves() {
    let plan = Plan::pairs(Dialect::Vllm, 1, 1).registered(|spec| spec.kv_connector = None);
    let house = plan.open().await;
    Ask::chat(PROMPT, 9).served(house.address).await;
    Ask::chat(PROMPT, 9).streamed().served(house.address).await;
    let stats = house.stats().await;
    // The prefill ran, untagged, so nothing was pinned and nothing was handed over.
    assert_eq!((stats.handoffs.made, stats.requests.accepted), (0, 4), "{stats:?}");
    house.close().await;
}

#[tokio::test]
async fn a12_several_samples_and_several_prompts_are_kept_apart_on_vllm() {
    let house = House::pair(Dialect::Vllm).await;
    for streamed in [false, true] {
        let ask = Ask::chat(PROMPT, 6).with(json!({"n": 3, "stream": streamed}));
        let reply = ask.served(house.address).await;
        for choice in 0..3 {
            assert_eq!(ask.text_of(&reply, choice.into()), ask.expected_choice(choice));
        }
        let ask =
            Ask::completion("", 5).with(json!({"prompt": ["one fish", "two fish"], "stream": streamed}));
        let reply = ask.post(house.address).await;
        for (choice, prompt) in ["one fish", "two fish"].iter().enumerate() {
            let own = ask.clone().of(PromptId::of_text(prompt));
            assert_eq!(ask.text_of(&reply, choice as u64), own.expected());
        }
    }
    let stats = house.stats().await;
    assert_eq!(stats.handoffs.made, 0, "a hand-off has one consumer: {stats:?}");
    assert_eq!(house.engine(0).stats().requests.accepted, 0);
    house.close().await;
}

#[tokio::test]
async fn a12_several_prompts_get_a_room_each_on_sglang() {
    let house = House::pair(Dialect::Sglang).await;
    for streamed in [false, true] {
        let prompts = ["one fish swims", "two fish swim", "red fish"];
        let ask = Ask::completion("", 5).with(json!({"prompt": prompts, "stream": streamed}));
        let reply = ask.post(house.address).await;
        for (choice, prompt) in prompts.iter().enumerate() {
            let own = ask.clone().of(PromptId::of_text(prompt));
            assert_eq!(ask.text_of(&reply, choice as u64), own.expected());
        }
        let one = Ask::completion("", 4).with(json!({"prompt": ["a list of one"]}));
        one.of(PromptId::of_text("a list of one")).served(house.address).await;
    }
    let stats = house.stats().await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right), (8, 8), "{stats:?}");
    house.close().await;
}

#[tokio::test]
async fn prompts_of_token_ids_are_one_prompt_or_a_list() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = House::pair(dialect).await;
        let ids: Vec<u32> = (100..164).collect();
        let ask = Ask::completion("", 7).with(json!({"prompt": ids})).of(PromptId::of_tokens(&ids));
        ask.served(house.address).await;
        ask.streamed().served(house.address).await;
        let lists = [vec![7_u32, 8, 9], (10..50).collect()];
        let ask = Ask::completion("", 3).with(json!({"prompt": lists}));
        let reply = ask.post(house.address).await;
        for (choice, list) in lists.iter().enumerate() {
            let own = ask.clone().of(PromptId::of_tokens(list));
            assert_eq!(ask.text_of(&reply, choice as u64), own.expected());
        }
        if dialect == Dialect::Sglang {
            let ask = Ask::generate("", 6).without("text").with(json!({"input_ids": ids}));
            ask.of(PromptId::of_tokens(&ids)).served(house.address).await;
        }
        house.close().await;
    }
}

#[tokio::test]
async fn ua11_a_limit_of_one_token_is_one_token_and_of_none_is_the_engines_to_refuse() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = House::pair(dialect).await;
        let one = Ask::chat(PROMPT, 1);
        let reply = one.served(house.address).await;
        assert_eq!(reply.json()["usage"]["completion_tokens"], 1);
        one.streamed().served(house.address).await;
        let none = Ask::chat(PROMPT, 0).post(house.address).await;
        match dialect {
            Dialect::Vllm => {
                assert_eq!(none.error(), (400, "decode_bad_request".into()), "{}", none.text());
                assert!(none.json()["error"]["message"].as_str().unwrap().contains("max_tokens"));
            }
            Dialect::Sglang | Dialect::Trtllm => {
                assert!(none.status == 200 || none.status == 400, "{}", none.text())
            }
        }
        house.close().await;
    }
}

#[tokio::test]
async fn a_limit_may_be_spelled_either_way_or_left_out() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = House::pair(dialect).await;
        let ask = Ask::chat(PROMPT, 9).without("max_tokens").with(json!({"max_completion_tokens": 9}));
        ask.served(house.address).await;
        ask.with(json!({"max_tokens": 3})).served(house.address).await;
        // The model ends by itself.
        let ask = Ask::chat(PROMPT, 9).without("max_tokens").expecting(baton_sim::text::NATURAL_TOKENS);
        let reply = ask.served(house.address).await;
        assert_eq!(reply.json()["choices"][0]["finish_reason"], "stop");
        Ask::chat(PROMPT, 9).with(json!({"min_tokens": 4})).served(house.address).await;
        house.close().await;
    }
}

#[tokio::test]
async fn log_probabilities_come_through() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = House::pair(dialect).await;
        for streamed in [false, true] {
            let ask = Ask::completion(PROMPT, 6).with(json!({"logprobs": 1, "stream": streamed}));
            let reply = ask.served(house.address).await;
            let choices = if streamed { reply.events() } else { vec![reply.json()] };
            let told: usize = choices
                .iter()
                .filter_map(|c| c["choices"][0]["logprobs"]["token_logprobs"].as_array())
                .map(Vec::len)
                .sum();
            assert_eq!(told, 6, "{}", reply.text());
            let ask = Ask::chat(PROMPT, 6).with(json!({"logprobs": true, "stream": streamed}));
            ask.served(house.address).await;
        }
        house.close().await;
    }
}

#[tokio::test]
async fn ua12_a_stop_string_ends_the_answer_where_it_stands() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = House::pair(dialect).await;
        let ask = Ask::chat(PROMPT, 20);
        let all = ask.expected();
        let stop = all.split(' ').nth(4).unwrap();
        let end = all.find(&format!(" {stop}")).unwrap() + 1;
        let reply = ask.clone().with(json!({"stop": [stop]})).post(house.address).await;
        assert_eq!(ask.text_of(&reply, 0).trim_end(), all[..end].trim_end(), "{}", reply.text());
        assert_eq!(reply.json()["choices"][0]["finish_reason"], "stop");
        let ask = ask.streamed().with(json!({"stop": stop}));
        let reply = ask.post(house.address).await;
        assert_eq!(ask.text_of(&reply, 0).trim_end(), all[..end].trim_end(), "{}", reply.text());
        // The very first token is the stop: the prefill stops there, and the decode has nothing to add.
        let first = all.split(' ').next().unwrap();
        let ask = Ask::chat(PROMPT, 20).with(json!({"stop": [first]}));
        let reply = ask.post(house.address).await;
        assert_eq!((reply.status, ask.text_of(&reply, 0)), (200, String::new()), "{}", reply.text());
        house.close().await;
    }
}

#[tokio::test]
async fn usage_is_told_to_those_who_ask_and_counted_for_all() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = House::pair(dialect).await;
        let ask = Ask::chat(PROMPT, 10).streamed();
        let silent = ask.served(house.address).await;
        assert!(silent.events().iter().all(|e| !e["usage"].is_object()), "{}", silent.text());
        let told = ask.with(json!({"stream_options": {"include_usage": true}})).served(house.address).await;
        let last = told.events().pop().unwrap();
        assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(10)));
        Ask::chat(PROMPT, 10).served(house.address).await;
        let page = house.page().await;
        let output = page.sum("smg_router_tokens_total", &[r#"token_type="output""#]);
        assert_eq!(output, 20.0, "the streamed one that asked, and the plain one");
        house.close().await;
    }
}

#[tokio::test]
async fn many_at_once_are_not_mixed_up() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = Plan::pairs(dialect, 2, 2).args("--runtime-worker-threads 2").open().await;
        let sent = (0..48).map(|at| {
            let address = house.address;
            tokio::spawn(async move {
                let ask =
                    if at % 2 == 0 { Ask::chat(&words(at), 30) } else { Ask::completion(&words(at), 30) };
                let ask = if at % 3 == 0 { ask.streamed() } else { ask };
                ask.served(address).await;
            })
        });
        for one in sent.collect::<Vec<_>>() {
            one.await.unwrap();
        }
        let stats = house.stats().await;
        assert_eq!((stats.handoffs.made, stats.handoffs.right), (48, 48), "{stats:?}");
        let served: Vec<u64> = (0..4).map(|at| house.engine(at).stats().requests.accepted).collect();
        assert!(served.iter().all(|n| *n > 0), "the load is spread: {served:?}");
        house.close().await;
    }
}
