//! Which engine is this, and what does it say about itself?
//!
//! The order of questions is SMG's (1.13): whom the model list names as owner, then vLLM's
//! `/version`, then SGLang's `/server_info`; whatever is alive beyond that is generic. A hint from whoever
//! registered the worker is believed without asking.
//!
//! An answer of 4xx means "I have no such page" and ends nothing. No answer, or one of 5xx, means that
//! the worker is not up yet: the caller comes back later.

use baton_core::fleet::{Engine, Role};
use serde_json::Value;

use super::facts::Facts;
use super::get::{Silence, Target};
use super::{sglang, vllm};

/// Asks a worker for everything that can be had.
///
/// # Errors
/// The worker does not answer, or answers that it cannot yet.
pub async fn describe(target: &Target, hint: Option<Engine>, role: Role) -> Result<Facts, Silence> {
    let models = page(target, "/v1/models").await?;
    let mut facts = Facts::default();
    if let Some(list) = &models {
        facts.read_models(list);
    }
    let owner = models.as_ref().and_then(owner);
    match hint.or(owner) {
        Some(engine) => {
            match engine {
                Engine::Sglang => sglang(target, role, &mut facts).await?,
                Engine::Vllm => vllm(target, &mut facts).await?,
                _ => false,
            };
            facts.engine = engine;
        }
        None if vllm(target, &mut facts).await? => {}
        None if sglang(target, role, &mut facts).await? => {}
        None => facts.engine = Engine::Generic,
    }
    Ok(facts)
}

/// The engine that the model list names as the owner. NVIDIA's builds of SGLang name NVIDIA.
fn owner(list: &Value) -> Option<Engine> {
    let first = list.get("data")?.as_array()?.first()?;
    match first.get("owned_by")?.as_str()? {
        "sglang" | "nvidia" => Some(Engine::Sglang),
        "vllm" => Some(Engine::Vllm),
        "tensorrt_llm" => Some(Engine::Trtllm),
        _ => None,
    }
}

/// Reads vLLM's page. False: there is none.
async fn vllm(target: &Target, facts: &mut Facts) -> Result<bool, Silence> {
    let Some(version) = page(target, "/version").await? else { return Ok(false) };
    let known = vllm::read_version(&version, facts);
    if known {
        facts.engine = Engine::Vllm;
    }
    Ok(known)
}

/// Reads SGLang's pages, under their new or their old names. False: there are none.
async fn sglang(target: &Target, role: Role, facts: &mut Facts) -> Result<bool, Silence> {
    let server = match page(target, "/server_info").await? {
        None => page(target, "/get_server_info").await?,
        found => found,
    };
    let Some(server) = server else { return Ok(false) };
    facts.engine = Engine::Sglang;
    sglang::read_server(&server, role == Role::Prefill, facts);
    let model = match page(target, "/model_info").await? {
        None => page(target, "/get_model_info").await?,
        found => found,
    };
    if let Some(model) = model {
        sglang::read_model(&model, facts);
    }
    sglang::name_the_model(facts);
    Ok(true)
}

/// A page of JSON. `None`: the worker is alive and has no such page.
async fn page(target: &Target, path: &str) -> Result<Option<Value>, Silence> {
    let reply = target.get(path).await?;
    if reply.status.is_server_error() {
        return Err(Silence::Unusable(format!("{path} answered {}", reply.status)));
    }
    if !reply.status.is_success() {
        return Ok(None);
    }
    Ok(serde_json::from_slice(&reply.body).ok())
}
