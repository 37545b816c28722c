"""What a client may make up, sent through Baton to a real pair of engines. Started by real-engines.sh.

usage: real-engines.py vllm|sglang GATEWAY

A client must not be able to speak to the engines about the hand-off: one crafted member ends a real vLLM decode engine
(seen with 0.32.0). Each request here carries such members. Its answer must equal that of the plain engine to the same
request without them, the KV must have moved all the same, by the engines' own counters, and the engines must live.
At last, with vLLM, the same is sent past the gateway, to show that it would have done harm.

Addresses come from PREFILL_URL, DECODE_URL, PLAIN_URL and MODEL_NAME. Only the standard library.
"""

import json
import os
import random
import sys
import time
import urllib.error
import urllib.request

PREFILL, DECODE, PLAIN = (os.environ[f"{name}_URL"] for name in ("PREFILL", "DECODE", "PLAIN"))
MODEL = os.environ.get("MODEL_NAME", "tiny")
WORDS = "a small fish sings to the old river and the quick cat writes a new book near the sea".split()
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# Longest time for an answer, in seconds. A dead decode engine may let a request hang.
ANSWER = 60

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


def post(url, body):
    """Status and text. `body` is JSON, or its text."""
    data = body if isinstance(body, str) else json.dumps(body)
    request = urllib.request.Request(url, data.encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except (urllib.error.URLError, OSError) as error:
        return None, str(error)


def healthy(url):
    try:
        with urllib.request.urlopen(url + "/health", timeout=20) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def counted(url, name, label=""):
    """The sum of a counter's samples."""
    total = 0.0
    with urllib.request.urlopen(url + "/metrics", timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith((name + "{", name + " ")) and label in line:
                total += float(line.rsplit(" ", 1)[1])
    return total


def moved(engine):
    """How much KV came to the decode engine, and how many prompt tokens it computed itself."""
    if engine == "vllm":
        source = "vllm:prompt_tokens_by_source_total"
        return (counted(DECODE, source, 'source="external_kv_transfer"'), counted(DECODE, source, 'source="local_compute"'))
    # Requests whose KV the decode engine made room for. It counts no bytes; the prefill engine does, in drive.py.
    computed = counted(DECODE, "sglang:realtime_tokens_total", 'mode="prefill_compute"')
    return counted(DECODE, "sglang:kv_transfer_alloc_ms_count"), computed


def text_of(status, text, stream):
    assert status == 200, f"answer {status}: {text[:300]}"
    if not stream:
        events = [json.loads(text)]
    else:
        data = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        assert data and data[-1] == "[DONE]", f"a stream without its end: {text[-300:]}"
        events = [json.loads(item) for item in data[:-1]]
    out = ""
    for event in events:
        assert "error" not in event, event
        for choice in event["choices"]:
            said = choice.get("message") or choice.get("delta") or choice
            out += said.get("content") or said.get("text") or ""
    return out


class Checks:
    def __init__(self, engine, gateway):
        self.engine, self.gateway, self.dice = engine, gateway, random.Random()
        self.passed = self.failed = 0

    def words(self, count):
        return " ".join(self.dice.choices(WORDS, k=count)) + "."

    def requests(self):
        """Ordinary ones; new prompts each time, so that no cache can answer."""
        base = {"model": MODEL, "temperature": 0, "max_tokens": 16}
        yield COMPLETIONS, {**base, "prompt": self.words(300)}
        yield CHAT, {**base, "messages": [{"role": "user", "content": self.words(200)}], "stream": True}

    def run(self, title, check, *args):
        try:
            check(*args)
        except (AssertionError, OSError, ValueError, KeyError) as failure:
            self.failed += 1
            print(f"FAILED {title}: {failure}", flush=True)
        else:
            self.passed += 1
            print(f"ok   {title}", flush=True)

    def harmless(self, path, body, sent):
        stream = body.get("stream", False)
        want = text_of(*post(PLAIN + path, body), stream)
        before = moved(self.engine)
        got = text_of(*post(self.gateway + path, sent), stream)
        assert got == want, f"{got!r} is not the plain engine's {want!r}"
        deadline = time.monotonic() + 5
        # The counters follow the answer by a moment.
        while (after := moved(self.engine))[0] <= before[0] and time.monotonic() < deadline:
            time.sleep(0.1)
        assert after[0] > before[0], f"no KV moved: {before} -> {after}"
        assert after[1] == before[1], f"the decode engine computed prompt tokens itself: {before} -> {after}"
        assert healthy(DECODE) and healthy(PREFILL), "an engine is not healthy any more"

    def refused(self, body):
        """A member twice: which of the two the engine would take is anybody's guess."""
        name, value = next(iter(VLLM["a pull without blocks"].items()))
        if self.engine == "sglang":
            name, value = "bootstrap_room", 1
        text = f'{json.dumps(body)[:-1]}, "{name}": {json.dumps(value)}, "{name}": {json.dumps(value)}}}'
        status, answer = post(self.gateway + COMPLETIONS, text)
        assert status in (200, 400), f"answer {status}: {answer[:300]}"
        assert healthy(DECODE) and healthy(PREFILL), "an engine is not healthy any more"

    def all(self):
        crafted = VLLM if self.engine == "vllm" else SGLANG
        for name, members in crafted.items():
            for path, body in self.requests():
                self.run(f"crafted, {name}: {path}", self.harmless, path, body, {**body, **members})
        # A name may be written with escapes, and is the same name.
        name, members = next(iter(crafted.items()))
        path, body = next(self.requests())
        text = json.dumps({**body, **members})
        for member in members:
            text = text.replace(f'"{member}"', '"' + member.replace("_", "\\u005f") + '"')
        self.run(f"crafted, {name}, with an escaped name", self.harmless, path, body, text)
        self.run("crafted, a member twice", self.refused, body)
        for path, body in self.requests():
            self.run(f"and an ordinary request after all that: {path}", self.harmless, path, body, body)


def control():
    """Past the gateway, as proof that the checks above could have failed."""
    body = {"model": MODEL, "temperature": 0, "max_tokens": 4, "prompt": "a small fish sings"}
    status, _ = post(DECODE + COMPLETIONS, {**body, **VLLM["a pull without blocks"]})
    deadline = time.monotonic() + 10
    while (alive := healthy(DECODE)) and time.monotonic() < deadline:
        time.sleep(0.2)
    end = "and lives: this version needs no protection" if alive else "and ended"
    print(f"note the decode engine, sent a pull without blocks past the gateway, answered {status} {end}", flush=True)


def main():
    engine, gateway = sys.argv[1], sys.argv[2].rstrip("/")
    checks = Checks(engine, gateway)
    checks.all()
    if engine == "vllm":
        control()
    print(f"{checks.passed} passed, {checks.failed} failed")
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()
