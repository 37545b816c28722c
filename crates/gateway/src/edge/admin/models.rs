//! Which models are served, for clients that ask before they send.

use baton_core::fault::{Fault, Shape};
use baton_core::fleet::Fleet;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::Reply;

/// `GET /v1/models`: every name that some worker has reported, in the caller's shape.
///
/// # Errors
/// [`Fault::NoModels`] until a worker has reported one.
pub fn models(fleet: &Fleet, shape: Shape) -> Result<Reply, Fault> {
    let ids = fleet.models();
    if ids.is_empty() {
        return Err(Fault::NoModels);
    }
    let data: Vec<Value> = ids.iter().map(|id| card(id, shape)).collect();
    let list = match shape {
        Shape::OpenAi | Shape::Responses => json!({"object": "list", "data": data}),
        Shape::Anthropic => json!({
            "data": data, "has_more": false, "first_id": ids.first(), "last_id": ids.last()}),
    };
    Ok(Reply::json(200, &list))
}

/// `GET /v1/models/{id}`. The id is as it stands in the path: it may contain slashes.
///
/// # Errors
/// [`Fault::ModelNotFound`].
pub fn model(fleet: &Fleet, id: &str, shape: Shape) -> Result<Reply, Fault> {
    let id = percent_decode_str(id).decode_utf8_lossy();
    let known = fleet.models();
    match known.contains(&&*id) {
        true => Ok(Reply::json(200, &card(&id, shape))),
        false => Err(Fault::ModelNotFound { model: id.into_owned(), known: known.join(", ") }),
    }
}

/// Engines report no date of creation that means anything, so it is 0, as SMG has it.
fn card(id: &str, shape: Shape) -> Value {
    match shape {
        Shape::OpenAi | Shape::Responses => {
            json!({"id": id, "object": "model", "created": 0, "owned_by": "self_hosted"})
        }
        Shape::Anthropic => json!({
            "type": "model", "id": id, "display_name": id, "created_at": "1970-01-01T00:00:00Z"}),
    }
}
