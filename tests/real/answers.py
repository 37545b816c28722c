"""Answers of every API in one form, so that the gateway's can be compared with the plain engine's."""

import json

from pair import CHAT, COMPLETIONS, GENERATE, MESSAGES, RESPONSES, like, post, until


def same(pair, path, body, moves=None, sent=None):
    """The gateway's answer equals the plain engine's. `moves`: the KV must have come from the prefill engine (True), must
    not (False: the decode computes the prompt), or either (None). `sent` is what the gateway gets, if not `body`."""
    want = told(path, *post(pair.plain + path, body), body)
    before = pair.moved()
    got = told(path, *post(pair.gateway + path, body if sent is None else sent), body)
    assert like(got, want), f"{got} is not the plain engine's {want}"
    if moves is None:
        return None

    def counted():
        return pair.moved()[0] > before[0]

    if not moves:
        assert pair.moved()[0] == before[0], "KV moved"
        return "computed by the decode"
    # The counters follow the answer by a moment.
    assert until(5, counted), f"no KV moved: {before} -> {pair.moved()}"
    after = pair.moved()
    assert after[1] == before[1], f"the decode engine computed prompt tokens itself: {before} -> {after}"
    return f"{after[0] - before[0]:.0f} {'prompt tokens' if pair.engine.name == 'vllm' else 'transfers'} moved"


def events(text, done=True):
    data = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    if done:
        assert data and data[-1] == "[DONE]", f"a stream without its end: {text[-300:]}"
        data = data[:-1]
    out = [json.loads(item) for item in data]
    for event in out:
        assert event.get("error") is None, event
    return out


def told(path, status, text, body):
    assert status == 200, f"answer {status}: {text[:300]}"
    stream = body.get("stream", False)
    return {COMPLETIONS: openai, CHAT: openai, MESSAGES: messages, RESPONSES: responses, GENERATE: native}[path](text, stream)


def openai(text, stream):
    parts = events(text) if stream else [json.loads(text)]
    out, usage = {}, None
    for part in parts:
        usage = part.get("usage") or usage
        for choice in part["choices"]:
            mine = out.setdefault(choice["index"], {"text": "", "finish": None, "tokens": [], "logprobs": [], "top": []})
            said = choice.get("message") or choice.get("delta") or choice
            mine["text"] += said.get("content") or said.get("text") or ""
            mine["finish"] = choice["finish_reason"] or mine["finish"]
            logprobs = choice.get("logprobs") or {}
            for token in logprobs.get("content") or []:
                mine["tokens"].append(token["token"])
                mine["logprobs"].append(token["logprob"])
                mine["top"].append({one["token"]: one["logprob"] for one in token.get("top_logprobs") or []})
            mine["tokens"] += logprobs.get("tokens") or []
            mine["logprobs"] += logprobs.get("token_logprobs") or []
            mine["top"] += logprobs.get("top_logprobs") or []
    assert all(mine["finish"] for mine in out.values()), f"a choice without its end: {out}"
    return {"choices": out, "usage": usage and [usage[k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")]}


def messages(text, stream):
    if not stream:
        whole = json.loads(text)
        return {"text": [block.get("text") for block in whole["content"]], "stop": whole["stop_reason"],
                "usage": [whole["usage"][k] for k in ("input_tokens", "output_tokens")]}
    parts = events(text, done=False)
    kinds = [part["type"] for part in parts if part["type"] != "ping"]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds
    texts = {}
    for part in parts:
        if part["type"] == "content_block_delta":
            texts[part["index"]] = texts.get(part["index"], "") + part["delta"].get("text", "")
    end = next(part for part in parts if part["type"] == "message_delta")
    return {"text": [texts[i] for i in sorted(texts)], "stop": end["delta"]["stop_reason"],
            "usage": end["usage"]["output_tokens"]}


def responses(text, stream):
    deltas = ""
    if stream:
        parts = events(text, done=False)
        deltas = "".join(part["delta"] for part in parts if part["type"] == "response.output_text.delta")
        whole = parts[-1]["response"]
    else:
        whole = json.loads(text)
    items = [part["text"] for item in whole["output"] for part in item.get("content") or [] if "text" in part]
    if stream:
        assert deltas == "".join(items), f"the stream said {deltas!r}, its end {items!r}"
    return {"text": items, "status": whole["status"],
            "usage": [whole["usage"][k] for k in ("input_tokens", "output_tokens")]}


def native(text, stream):
    """SGLang's own API: what each event repeats is replaced, not added."""
    parts = events(text) if stream else json.loads(text)
    out = {}
    for at, part in enumerate(parts if isinstance(parts, list) else [parts]):
        meta = part["meta_info"]
        index = part.get("index", 0) if stream else at
        out[index] = {"text": part["text"], "ids": part.get("output_ids"), "prompt": meta["prompt_tokens"],
                      "finish": meta["finish_reason"] and meta["finish_reason"]["type"], "logprobs":
                      [meta.get("input_token_logprobs"), meta.get("output_token_logprobs")]}
    return out
