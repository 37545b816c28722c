"""Clients that leave at every stage. Afterwards neither engine may hold KV for anybody, and both must serve as before."""

import json
import socket
import struct
import threading
import time
from urllib.parse import urlsplit

import answers
from pair import CHAT, COMPLETIONS, COUNT, MESSAGES, MODEL, counted

CLIENTS = 8
# Seconds after the request at which a client leaves: during the prefill, between the legs, in the stream.
AFTER = (0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.35, 0.6, 1.0)


def bodies(pair):
    base = {"model": MODEL, "temperature": 0, "max_tokens": 300}
    say = [{"role": "user", "content": pair.words(350)}]
    return [
        (COMPLETIONS, {**base, "prompt": pair.words(400), "stream": True}),
        (CHAT, {**base, "messages": say, "stream": True}),
        (COMPLETIONS, {**base, "prompt": pair.words(400)}),
        (COMPLETIONS, {**base, "prompt": [pair.words(200), pair.words(300)], "stream": True}),
        (CHAT, {**base, "messages": say, "n": 2, "temperature": 1.0, "stream": True}),
        (MESSAGES, {**base, "messages": say, "stream": True}),
        (COUNT, {"model": MODEL, "messages": say}),
    ]


def leave(gateway, path, body, stage, abruptly):
    """One client: `stage` is "head" or "body" (in the middle of these), a number of seconds, or "first byte"."""
    address = urlsplit(gateway)
    data = json.dumps(body).encode()
    head = (f"POST {path} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\n\r\n").encode()
    line = socket.create_connection((address.hostname, address.port), 10)
    with line:
        line.settimeout(30)
        if stage == "head":
            line.sendall(head[:40])
        elif stage == "body":
            line.sendall(head + data[:len(data) // 2])
        else:
            line.sendall(head + data)
        if stage == "first byte":
            line.recv(1)
        elif isinstance(stage, float):
            time.sleep(stage)
        if abruptly:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def storm(pair, waves):
    stages = ["head", "body", "first byte", *map(float, AFTER)]
    todo = [(stage, *one) for _ in range(waves) for stage in stages for one in bodies(pair)]
    pair.dice.shuffle(todo)
    count, failures = len(todo), []

    def client(number):
        while todo:
            try:
                stage, path, body = todo.pop()
                leave(pair.gateway, path, body, stage, (len(todo) + number) % 2 == 0)
            except IndexError:
                return
            except OSError as failure:
                failures.append(failure)

    crowd = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()
    assert not failures, f"{len(failures)} clients were refused or kept waiting, first: {failures[0]!r}"
    return f"{count} clients left"


def rests(pair, expired):
    note = pair.at_rest()
    if pair.engine.name != "vllm":
        return note
    late = counted(pair.prefill, "vllm:nixl_num_kv_expired_reqs_total") - expired
    return f"{note}, {late:.0f} leases ran out"


def check(pair):
    expired = counted(pair.prefill, "vllm:nixl_num_kv_expired_reqs_total") if pair.engine.name == "vllm" else 0
    pair.run("a storm of clients that leave", storm, pair, 2)
    pair.run("the storm, and then", rests, pair, expired)
    pair.run("both engines live", pair.alive)
    for path, body in ((COMPLETIONS, {"prompt": pair.words(300)}),
                       (CHAT, {"messages": [{"role": "user", "content": pair.words(200)}], "stream": True})):
        body = {"model": MODEL, "temperature": 0, "max_tokens": 16, **body}
        pair.run(f"an ordinary request after the storm: {path}", answers.same, pair, path, body, True)
