"""An engine that is killed and comes back at the same address. Requests meanwhile fail in time and say why; requests
afterwards are right again, and the KV moves between the new engines."""

import json
import threading
import time

import answers
from pair import COMPLETIONS, MODEL, post, until

# A request that meets a dead engine must be answered within this many seconds.
TOLD = 20
# The gateway's health checks and breakers must have found the engine again after this many seconds.
BACK = 60


def body(pair, **more):
    return {"model": MODEL, "temperature": 0, "max_tokens": 16, "prompt": pair.words(300), **more}


def fails(pair, said):
    begun = time.monotonic()
    status, text = post(pair.gateway + COMPLETIONS, body(pair))
    took = time.monotonic() - begun
    assert status and status >= 500 and json.loads(text)["error"]["code"], f"answer {status}: {text[:300]}"
    assert took < TOLD, f"the answer took {took:.1f} s"
    said.append(f"{status} {json.loads(text)['error']['code']}")


def unanswered(pair):
    said = []
    for _ in range(3):
        fails(pair, said)
    return ", ".join(said)


def cut(pair, url, back):
    """Streams that run when the engine ends are ended too, and honestly."""
    told, begun = [], threading.Barrier(4)

    def stream():
        begun.wait()
        told.append(post(pair.gateway + COMPLETIONS, body(pair, max_tokens=1200, stream=True), TOLD + 20))

    crowd = [threading.Thread(target=stream) for _ in range(3)]
    for one in crowd:
        one.start()
    begun.wait()
    time.sleep(0.8)
    back.update(zip(("words", "environ"), pair.end(url)))
    ended = time.monotonic()
    for one in crowd:
        one.join()
    took = time.monotonic() - ended
    assert took < TOLD, f"a stream outlived its engine by {took:.1f} s"
    for status, text in told:
        whole = status == 200 and text.rstrip().endswith("data: [DONE]") and '"error"' not in text
        assert whole or '"error"' in text, f"answer {status}, without an error: ...{text[-300:]}"
    errors = sum('"error"' in text for _, text in told)
    return f"{errors} of {len(told)} streams ended with an error, all within {took:.1f} s"


def right_again(pair):
    def served():
        return post(pair.gateway + COMPLETIONS, body(pair, max_tokens=2))[0] == 200

    begun = time.monotonic()
    assert until(BACK, served), f"no request was served within {BACK} s of the engine's return"
    found = time.monotonic() - begun
    for stream in (False, True):
        for _ in range(3):
            answers.same(pair, COMPLETIONS, body(pair, stream=stream), moves=True)
    return f"found again after {found:.1f} s, six answers right"


def check(pair, name, url):
    back = {}
    pair.run(f"the {name} is killed under three streams", cut, pair, url, back)
    if not back:
        return
    pair.run(f"requests without a {name}", unanswered, pair)
    pair.run(f"the {name} starts again", pair.start, url, back["words"], back["environ"])
    pair.run(f"after the {name}'s restart", right_again, pair)
    pair.run(f"the {name}'s restart, and then", pair.at_rest)
