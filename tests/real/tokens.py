"""What the engine's `/tokenize` tells the gateway of a prompt, and what the engine counts when it serves it.

The gateway asks where a choice goes by tokens: AIBrix's `pd` with prompt-length buckets, which these requests ask for in a
header. It is to run with `--tokenizer-path engine --explain-header` and AIBRIX_PROMPT_LENGTH_BUCKETING=true.
"""

import json
import re
import urllib.request

from pair import ANSWER, CHAT, COMPLETIONS, GENERATE, MESSAGES, MODEL, RESPONSES

HEADERS = {"content-type": "application/json", "routing-strategy": "pd", "x-baton-explain": "1"}
BASE = {"model": MODEL, "temperature": 0, "max_tokens": 4}
FIND = {"type": "object", "properties": {"what": {"type": "string", "description": "What to find"}}}


def cases(pair):
    """Title, path, body. Each prompt is one that nobody has seen, so that all of it is counted."""
    chat = [{"role": "system", "content": pair.words(20)}, {"role": "user", "content": pair.words(90)}]
    yield "a text", COMPLETIONS, {**BASE, "prompt": pair.words(120)}
    yield "a chat", CHAT, {**BASE, "messages": chat}
    yield "a chat without a prompt to answer", CHAT, {**BASE, "add_generation_prompt": False, "messages": [
        {"role": "user", "content": pair.words(70)}]} if pair.engine.name == "vllm" else {**BASE, "messages": chat[1:]}
    yield "a message", MESSAGES, {**BASE, "system": pair.words(20), "messages": [
        {"role": "user", "content": [{"type": "text", "text": pair.words(80)}]}]}
    yield "a message after a call", MESSAGES, {**BASE, "system": [{"type": "text", "text": pair.words(15)}], "messages": [
        {"role": "user", "content": pair.words(60)},
        {"role": "assistant", "content": [{"type": "text", "text": pair.words(10)}, {
            "type": "tool_use", "id": "call00001", "name": "find", "input": {"what": pair.words(3), "n": [1, 2.5]}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call00001", "content": pair.words(12)}]}]}
    response = {"model": MODEL, "temperature": 0, "max_output_tokens": 16, "instructions": pair.words(15)}
    yield "a response", RESPONSES, {**response, "input": pair.words(80)}
    yield "a response to several items", RESPONSES, {**response, "input": [
        {"role": "user", "content": [{"type": "input_text", "text": pair.words(40)}]},
        {"role": "assistant", "content": pair.words(20)},
        {"role": "user", "content": pair.words(30)}]}
    if pair.engine.name == "sglang":
        sampling = {"temperature": 0, "max_new_tokens": 4}
        yield "/generate", GENERATE, {"text": pair.words(120), "sampling_params": sampling}


def counted(answer):
    """The prompt's tokens, as the engine's answer has them."""
    usage = answer.get("usage") or answer["meta_info"]
    own = usage.get("prompt_tokens", usage.get("input_tokens"))
    return own + (usage.get("cache_read_input_tokens") or 0)


def told_and_counted(pair, path, body):
    request = urllib.request.Request(pair.gateway + path, json.dumps(body).encode(), HEADERS)
    with urllib.request.urlopen(request, timeout=ANSWER) as answer:
        explained = json.loads(answer.headers["x-baton-explain"])["prompt"]
        tokens = counted(json.loads(answer.read()))
    told = re.fullmatch(r"(\d+) tokens \(the engine's /tokenize\)", explained)
    assert told, f"no engine was asked, or it said nothing: {explained}"
    assert int(told[1]) == tokens, f"{explained}, and the answer says {tokens}"
    return explained


def check(pair):
    for title, path, body in cases(pair):
        pair.run(f"the engine tells and counts the same: {title}", told_and_counted, pair, path, body)
    pair.run("questions about prompts, and then", pair.at_rest)
