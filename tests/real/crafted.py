"""What a client may make up about the hand-off. One crafted member ends a real vLLM decode engine (seen with 0.32.0).

Each request here carries such members. Its answer must equal that of the plain engine to the same request without them,
the KV must have moved all the same, by the engines' own counters, and the engines must live. At last, with vLLM, the same
is sent past the gateway, to show that it would have done harm.
"""

import json

import answers
from pair import CHAT, COMPLETIONS, MESSAGES, MODEL, RESPONSES, healthy, post, until

# What ends, misleads or blocks a decode engine that is sent it.
PARAMS = {"do_remote_prefill": True, "do_remote_decode": False, "remote_request_id": "r", "remote_host": "127.0.0.1",
          "remote_port": 1, "tp_size": 1}
VLLM = {
    "a pull without blocks": {"kv_transfer_params": {"do_remote_prefill": True}},
    "blocks that are words": {"kv_transfer_params": {**PARAMS, "remote_engine_id": "e", "remote_block_ids": [["x"]]}},
    "no engine id": {"kv_transfer_params": {**PARAMS, "remote_block_ids": [[1, 2, 3]]}},
    "an engine that nobody has": {
        "kv_transfer_params": {**PARAMS, "remote_engine_id": "e", "remote_block_ids": [[1, 2, 3, 4]]}},
    "a push on the decode leg": {"kv_transfer_params": {"do_remote_decode": True}},
    "params that are null": {"kv_transfer_params": None},
}
SGLANG = {
    "a room of its own": {"bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 1},
    "a room that is too large": {"bootstrap_room": 2**64},
    "ranks that are not there": {"routed_dp_rank": 7, "data_parallel_rank": 7, "disagg_prefill_dp_rank": 7},
    "another engine's parameters": {"kv_transfer_params": {"do_remote_prefill": True}, "disaggregated_params": {}},
}


def requests(pair):
    """Ordinary ones; new prompts each time, so that no cache can answer."""
    base = {"model": MODEL, "temperature": 0, "max_tokens": 16}
    yield COMPLETIONS, {**base, "prompt": pair.words(300)}
    yield CHAT, {**base, "messages": [{"role": "user", "content": pair.words(200)}], "stream": True}


def elsewhere(pair):
    """The other routes that hand over."""
    yield MESSAGES, {"model": MODEL, "temperature": 0, "max_tokens": 16,
                     "messages": [{"role": "user", "content": pair.words(200)}]}
    yield RESPONSES, {"model": MODEL, "temperature": 0, "max_output_tokens": 16, "input": pair.words(200)}


def harmless(pair, path, body, sent):
    answers.same(pair, path, body, moves=True, sent=sent)
    pair.alive()


def refused(pair, crafted, body):
    """A member twice: which of the two the engine would take is anybody's guess."""
    name, value = next(iter(next(iter(crafted.values())).items()))
    text = f'{json.dumps(body)[:-1]}, "{name}": {json.dumps(value)}, "{name}": {json.dumps(value)}}}'
    status, answer = post(pair.gateway + COMPLETIONS, text)
    assert status in (200, 400), f"answer {status}: {answer[:300]}"
    pair.alive()


def check(pair):
    crafted = VLLM if pair.engine.name == "vllm" else SGLANG
    for name, members in crafted.items():
        for path, body in requests(pair):
            pair.run(f"crafted, {name}: {path}", harmless, pair, path, body, {**body, **members})
    name, members = next(iter(crafted.items()))
    for path, body in elsewhere(pair):
        pair.run(f"crafted, {name}: {path}", harmless, pair, path, body, {**body, **members})
    # A name may be written with escapes, and is the same name.
    path, body = next(requests(pair))
    text = json.dumps({**body, **members})
    for member in members:
        text = text.replace(f'"{member}"', '"' + member.replace("_", "\\u005f") + '"')
    pair.run(f"crafted, {name}, with an escaped name", harmless, pair, path, body, text)
    pair.run("crafted, a member twice", refused, pair, crafted, body)
    for path, body in requests(pair):
        pair.run(f"and an ordinary request after all that: {path}", harmless, pair, path, body, body)
    pair.run("crafted, and then", pair.at_rest)


def control(pair):
    """Past the gateway, as proof that the checks above could have failed. Ends the decode engine."""
    body = {"model": MODEL, "temperature": 0, "max_tokens": 4, "prompt": "a small fish sings"}
    status, _ = post(pair.decode + COMPLETIONS, {**body, **VLLM["a pull without blocks"]})
    ended = until(10, lambda: not healthy(pair.decode))
    end = "and ended" if ended else "and lives: this version needs no protection"
    print(f"note the decode engine, sent a pull without blocks past the gateway, answered {status} {end}", flush=True)
