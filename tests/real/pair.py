"""A real pair of engines with a gateway in front and a plain engine beside: how it is talked to and asked how it is.

Addresses come from PREFILL_URL, DECODE_URL, PLAIN_URL and MODEL_NAME. Only the standard library.
"""

import json
import math
import os
import random
import signal
import subprocess
import time
import urllib.error
import urllib.request

MODEL = os.environ.get("MODEL_NAME", "tiny")
WORDS = "a small fish sings to the old river and the quick cat writes a new book near the sea".split()
COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
MESSAGES, COUNT, RESPONSES = "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"
# Longest time for an answer, in seconds. A dead decode engine may let a request hang; vLLM compiles something for some 15 s
# when it is first asked for log probabilities.
ANSWER = 120
# How long an engine may keep KV that nobody fetched, in seconds: vLLM's lease (0.32) and some grace for slow cores.
LEASE = 30 + 5
# Longest time for an engine to come back after it was ended, in seconds.
START = float(os.environ.get("START_TIMEOUT", "900"))


def post(url, body, timeout=ANSWER):
    """Status and text; no status if there was no answer. `body` is JSON, or its text."""
    data = body if isinstance(body, str) else json.dumps(body)
    request = urllib.request.Request(url, data.encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except (urllib.error.URLError, OSError) as error:
        return None, str(error)


def get(url, timeout=20):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


def healthy(url):
    try:
        get(url + "/health")
        return True
    except OSError:
        return False


def until(seconds, true):
    """Whether `true()` became so in time."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def counted(url, name, label=""):
    """The sum of a metric's samples."""
    total = 0.0
    for line in get(url + "/metrics", 30).splitlines():
        if line.startswith((name + "{", name + " ")) and label in line:
            total += float(line.rsplit(" ", 1)[1])
    return total


def like(one, other):
    """Equal, but for what the order of floating-point sums may change."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(like(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(like, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, abs_tol=1e-3)
    return one == other


class Vllm:
    """vLLM with NIXL. `n`, lists of prompts and `echo` go to the decode alone: a hand-off has one consumer."""

    name, fans_out = "vllm", False
    # It refuses several samples of a greedy request; this near to zero they are as certain.
    alike = {"temperature": 0.02, "seed": 7}

    def moved(self, decode):
        """How much KV came to the decode engine, and how many prompt tokens it computed itself."""
        source = "vllm:prompt_tokens_by_source_total"
        return (counted(decode, source, 'source="external_kv_transfer"'),
                counted(decode, source, 'source="local_compute"'))

    def held(self, url):
        """Requests that run or wait, and the part of the KV cache that is taken. Both are 0 at rest."""
        return (counted(url, "vllm:num_requests_running") + counted(url, "vllm:num_requests_waiting"),
                counted(url, "vllm:kv_cache_usage_perc"))


class Sglang:
    """SGLang with Mooncake. Everything is fanned out or has a room for each prompt, so KV always moves."""

    name, fans_out, alike = "sglang", True, {}

    def moved(self, decode):
        # Requests whose KV the decode engine made room for. It counts no bytes; the prefill engine does, in drive.py.
        computed = counted(decode, "sglang:realtime_tokens_total", 'mode="prefill_compute"')
        return counted(decode, "sglang:kv_transfer_alloc_ms_count"), computed

    def held(self, url):
        # Its gauges in /metrics stay as they were at the last step; the scheduler itself is asked here.
        loads = json.loads(get(url + "/v1/loads?include=all"))["loads"]
        open_requests = sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)
        tokens = sum(load["num_used_tokens"] for load in loads)
        return open_requests, tokens


class Pair:
    def __init__(self, engine, gateway, metrics):
        self.engine = {"vllm": Vllm, "sglang": Sglang}[engine]()
        self.prefill, self.decode, self.plain = (os.environ[f"{n}_URL"] for n in ("PREFILL", "DECODE", "PLAIN"))
        self.gateway, self.metrics = gateway, metrics
        self.seed = random.randrange(2**32)
        self.dice = random.Random(self.seed)
        self.passed = self.failed = 0
        self.restarted = []

    def words(self, count):
        """A prompt that nobody has seen, so that no prefix cache can answer it."""
        return " ".join(self.dice.choices(WORDS, k=count)) + "."

    def tokens(self, count):
        return [self.dice.randrange(300, 1800) for _ in range(count)]

    def run(self, title, check, *args, **named):
        begun = time.monotonic()
        try:
            note = check(*args, **named)
        except (AssertionError, OSError, ValueError, KeyError, IndexError, TypeError) as failure:
            self.failed += 1
            print(f"FAILED {title}: {type(failure).__name__} {failure}"[:2000], flush=True)
        else:
            self.passed += 1
            took = (time.monotonic() - begun) * 1000
            print(f"ok   {title}: {note or ''}{', ' if note else ''}{took:.0f} ms", flush=True)

    def moved(self):
        return self.engine.moved(self.decode)

    def alive(self):
        assert healthy(self.decode) and healthy(self.prefill), "an engine is not healthy any more"

    def at_rest(self, seconds=LEASE):
        """No KV is held, by either engine, and the gateway has nothing open. Says how long that took."""
        begun = time.monotonic()
        seen = None

        def rests():
            nonlocal seen
            seen = {"prefill": self.engine.held(self.prefill), "decode": self.engine.held(self.decode)}
            for gauge in ("smg_worker_requests_active", "smg_admission_inflight", "baton_detached_legs"):
                seen[gauge] = counted(self.metrics, gauge)
            return all(value in (0, (0, 0)) for value in seen.values())

        assert until(seconds, rests), f"not at rest after {seconds} s: {seen}"
        return f"at rest after {time.monotonic() - begun:.1f} s"

    def processes(self, url):
        """The engine's first process: that of our own process group which was told to listen there."""
        port = url.rsplit(":", 1)[1].encode()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                ours = os.getpgid(int(pid)) == os.getpgrp()
            except OSError:
                continue
            if ours and b"--port" in words and words[words.index(b"--port") + 1] == port and b"-m" in words:
                return int(pid), words[:-1]
        raise AssertionError(f"no process of this run listens as {url}")

    def end(self, url, with_signal=signal.SIGKILL):
        """Ends an engine as a crash would. Returns what `start` needs to bring it back."""
        pid, words = self.processes(url)
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = dict(item.split(b"=", 1) for item in file.read().split(b"\0") if b"=" in item)
        family = descendants(pid)
        for one in [pid, *family]:
            try:
                os.kill(one, with_signal)
            except ProcessLookupError:
                pass
        assert until(30, lambda: not any(map(runs, [pid, *family]))), f"{url} did not end"
        return words, environ

    def start(self, url, words, environ):
        log = open(os.path.join(os.environ.get("LOG_DIR", "."), f"restarted-{url.rsplit(':', 1)[1]}.log"), "ab")
        with log:
            self.restarted.append(subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        begun = time.monotonic()
        assert until(START, lambda: healthy(url)), f"{url} did not come back within {START} s"
        return f"engine back after {time.monotonic() - begun:.0f} s"

    def close(self):
        for process in self.restarted:
            for one in descendants(process.pid):
                try:
                    os.kill(one, signal.SIGTERM)
                except ProcessLookupError:
                    pass
            process.terminate()
        for process in self.restarted:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                for one in descendants(process.pid):
                    try:
                        os.kill(one, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                process.kill()
                process.wait()


def status_field(pid, name):
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith(name + ":"):
                return line.split()[1]
    return ""


def runs(pid):
    try:
        return status_field(pid, "State") != "Z"
    except OSError:
        return False


def descendants(pid):
    children = {}
    for one in filter(str.isdigit, os.listdir("/proc")):
        try:
            children.setdefault(int(status_field(one, "PPid")), []).append(int(one))
        except (OSError, ValueError):
            continue
    found, open_ = [], [pid]
    while open_:
        mine = children.get(open_.pop(), [])
        found += mine
        open_ += mine
    return found
