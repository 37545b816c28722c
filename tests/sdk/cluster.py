"""What the checks talk to: `baton demo`, further gateways in front of its workers, and workers that are scripted.

Only the standard library. Everything listens on 127.0.0.1 and is stopped by whoever started it.
"""

import contextlib
import http.server
import json
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

# Longest wait, in seconds, for a process to be ready, for engines to be at rest, and for a process to end.
READY, REST, END = 60, 15, 20
LOOK = 0.02


def call(url, body=None, headers=None, method=None):
    """The JSON of a GET, or of a POST when there is a body."""
    data = None if body is None else json.dumps(body).encode()
    head = {"content-type": "application/json", **(headers or {})}
    with urllib.request.urlopen(urllib.request.Request(url, data, head, method=method), timeout=30) as answer:
        text, kind = answer.read(), answer.headers.get_content_type()
    return json.loads(text) if kind == "application/json" and text.strip() else text.decode()


def until(limit, found, what):
    """Asks until `found` gives something true, and gives that."""
    deadline = time.monotonic() + limit
    while not (value := found()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} not within {limit} s")
        time.sleep(LOOK)
    return value


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


class Process:
    """A baton process. Its output is kept for whoever has to find out why it failed."""

    def __init__(self, baton, *args):
        self.said = []
        self.child = subprocess.Popen(
            [baton, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
        )
        self.reader = threading.Thread(target=lambda: self.said.extend(self.child.stdout), daemon=True)
        self.reader.start()

    def output(self):
        return "".join(self.said)

    def alive(self):
        if self.child.poll() is not None:
            raise AssertionError(f"baton ended with status {self.child.returncode}:\n{self.output()}")
        return True

    @contextlib.contextmanager
    def or_stopped(self):
        """No process is left behind by what fails in here."""
        try:
            yield
        except BaseException:
            self.stop()
            raise

    def stop(self):
        """Asks it to end, twice as one does who is in a hurry, and gives its status."""
        for again in (0.5, END):
            if self.child.poll() is None:
                self.child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(again)
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        return self.child.returncode


class Demo(Process):
    """`baton demo` with one kind of engine."""

    def __init__(self, baton, engine):
        super().__init__(baton, "demo", "--port", "0", "--engine", engine)
        self.engine, self.stranded = engine, 0
        with self.or_stopped():
            until(READY, lambda: self.alive() and "Ctrl-C" in self.output(), "the demo is ready")
            self.url = re.search(r"gateway +(\S+)", self.output())[1]
            self.workers = call(self.url + "/workers")["workers"]

    def stats(self):
        """The counters of all engines together."""
        total = {}
        for worker in self.workers:
            add(total, call(worker["url"] + "/sim/stats"))
        return total

    def rest(self, leases=True):
        """The counters, once no engine has anything to do and all KV blocks are free.

        A decode engine that was made to fail never fetches its KV, which a vLLM prefill engine then keeps until its
        lease ends, 30 s. `strand` sets such blocks aside; `leases=False` asks for none of them.
        """

        def at_rest():
            stats = self.stats()
            requests, blocks = stats["requests"], stats["blocks"]
            busy = requests["running"] + requests["waiting"] + requests["open"]
            pinned = max(0, blocks["pinned"] - self.stranded) if leases else 0
            return None if busy or blocks["held"] or blocks["leaked"] or pinned else stats

        try:
            return until(REST, at_rest, "engines at rest")
        except AssertionError as late:
            raise AssertionError(f"{late}: {self.stats()}") from None

    def strand(self):
        """Blocks that are kept under a lease now are not asked for any more."""
        self.stranded = self.stats()["blocks"]["pinned"]

    def fault(self, role, **fault):
        """Arms a fault on every worker of a role."""
        for worker in self.workers:
            if worker["worker_type"] == role:
                call(worker["url"] + "/sim/fault", {"where": role, **fault})

    def disarm(self):
        """Disarms all faults and sets all counters to zero."""
        for worker in self.workers:
            call(worker["url"] + "/sim/reset", {})


def add(total, more):
    for key, value in more.items():
        if isinstance(value, dict):
            add(total.setdefault(key, {}), value)
        else:
            total[key] = total.get(key, 0) + value


class Gateway(Process):
    """`baton launch` with these flags, in front of these workers."""

    def __init__(self, baton, flags=(), workers=(), key=None):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        flags = [*flags, *(["--api-key", key] if key else [])]
        where = ["--host", "127.0.0.1", "--port", port, "--prometheus-host", "127.0.0.1", "--prometheus-port", free_port()]
        super().__init__(baton, "launch", "--pd-disaggregation", *map(str, where), *flags)
        with self.or_stopped():
            until(READY, lambda: self.alive() and self.answers("/liveness"), "the gateway listens")
            self.register(workers, {"authorization": f"Bearer {key}"} if key else {})

    def register(self, workers, head):
        for worker in workers:
            known = ("url", "worker_type", "kv_connector", "bootstrap_port")
            call(self.url + "/workers", {k: worker[k] for k in known if worker.get(k)}, head)
        if workers:
            until(READY, lambda: self.answers("/readiness"), "the gateway is ready")

    def answers(self, path):
        try:
            call(self.url + path)
        except (urllib.error.URLError, OSError):
            return False
        return True


TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
TOOL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


class ScriptedWorker:
    """A worker that speaks as vLLM does, keeps the bodies it gets, and answers each chat or message with a tool call.

    The simulated engines neither call tools nor tell what they were sent.
    """

    def __init__(self, role):
        self.role, self.bodies = role, []
        worker = self

        class Answers(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def reply(self, text, kind="application/json"):
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def do_GET(self):
                pages = {
                    "/v1/models": {"object": "list", "data": [{"id": "scripted", "object": "model", "owned_by": "vllm"}]},
                    "/version": {"version": "0.32.0"},
                }
                self.reply(json.dumps(pages.get(self.path, {})))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                worker.bodies.append(body)
                talks = self.path == "/v1/messages"
                if body.get("stream"):
                    self.reply(stream_of_a_tool_use() if talks else stream_of_a_tool_call(), "text/event-stream")
                else:
                    self.reply(json.dumps(with_handoff(body, tool_use() if talks else tool_call())))

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{self.server.server_port}"
        self.description = {"url": url, "worker_type": role, "kv_connector": "NixlConnector"}

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def with_handoff(body, answer):
    """The answer, with KV to fetch if the body asks for that."""
    if body.get("kv_transfer_params", {}).get("do_remote_decode"):
        answer["kv_transfer_params"] = {
            "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1]],
            "remote_engine_id": "e", "remote_request_id": "r", "remote_host": "127.0.0.1", "remote_port": 1,
            "tp_size": 1, "remote_num_tokens": 9,
        }
    return answer


def tool_use():
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "content": [TOOL_USE],
            "stop_reason": "tool_use", "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 5}}


def stream_of_a_tool_use():
    text = json.dumps(TOOL_USE["input"])
    parts = [{"type": "input_json_delta", "partial_json": part} for part in (text[:5], text[5:])]
    events = [
        {"type": "message_start", "message": {**tool_use(), "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {**TOOL_USE, "input": {}}},
        *({"type": "content_block_delta", "index": 0, "delta": part} for part in parts),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def tool_call():
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "scripted",
        "choices": [{"index": 0, "finish_reason": "tool_calls",
                     "message": {"role": "assistant", "content": None, "tool_calls": [TOOL]}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14},
    }


def stream_of_a_tool_call():
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    text = TOOL["function"]["arguments"]
    begun = {**TOOL, "index": 0, "function": {"name": TOOL["function"]["name"], "arguments": ""}}
    deltas = [{"role": "assistant", "content": None}, {"tool_calls": [begun]}]
    deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in (text[:5], text[5:])]
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
