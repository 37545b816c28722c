"""Every API and shape of request: the gateway's answer must be the plain engine's, and the KV where it says it comes from."""

import json

import answers
from pair import CHAT, COMPLETIONS, COUNT, GENERATE, MESSAGES, MODEL, RESPONSES, like, post

BASE = {"model": MODEL, "temperature": 0, "max_tokens": 12}


def chat(pair, count=120, **more):
    return {**BASE, "messages": [{"role": "system", "content": pair.words(20)},
                                 {"role": "user", "content": pair.words(count)}], **more}


def completion(pair, count=150, **more):
    return {**BASE, "prompt": pair.words(count), **more}


def cases(pair):
    """Title, path, body, and whether KV moves. With vLLM, what cannot share one hand-off is the decode's alone."""
    shared, alike = pair.engine.fans_out, pair.engine.alike
    streams = ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}})
    for more in ({}, *streams):
        how = ", streamed with usage" if "stream_options" in more else ", streamed" if more else ""
        yield f"a completion{how}", COMPLETIONS, completion(pair, **more), True
        yield f"token ids{how}", COMPLETIONS, completion(pair, prompt=pair.tokens(300), **more), True
        yield f"a chat{how}", CHAT, chat(pair, **more), True
        yield f"a list of texts{how}", COMPLETIONS, completion(
            pair, prompt=[pair.words(n) for n in (90, 200, 40)], **more), shared
        yield f"a list of lists of token ids{how}", COMPLETIONS, completion(
            pair, prompt=[pair.tokens(n) for n in (200, 60)], **more), shared
        yield f"three samples{how}", COMPLETIONS, completion(pair, n=3, **alike, **more), shared
        yield f"two samples of a chat{how}", CHAT, chat(pair, n=2, **alike, **more), shared
    for more in ({}, {"stream": True}):
        how = ", streamed" if more else ""
        yield f"two samples of each of two texts{how}", COMPLETIONS, completion(
            pair, prompt=[pair.words(50), pair.words(80)], n=2, **alike, **more), shared
        yield f"log probabilities of a completion{how}", COMPLETIONS, completion(pair, logprobs=2, **more), True
        yield f"log probabilities of a chat{how}", CHAT, chat(pair, logprobs=True, top_logprobs=2, **more), True
        yield f"echo{how}", COMPLETIONS, completion(pair, echo=True, **more), None
        yield f"one token{how}", COMPLETIONS, completion(pair, max_tokens=1, **more), None
    yield "echo with log probabilities", COMPLETIONS, completion(pair, 40, echo=True, logprobs=1), None
    yield "a prompt of a few words", CHAT, chat(pair, 3), True
    for more in ({}, {"stream": True}):
        how = ", streamed" if more else ""
        yield f"a message{how}", MESSAGES, {**chat(pair, **more), "messages": [
            {"role": "user", "content": pair.words(150)}], "system": pair.words(20)}, True
        yield f"a response{how}", RESPONSES, {"model": MODEL, "temperature": 0, "max_output_tokens": 16,
                                              "input": pair.words(150), **more}, True
    if pair.engine.name == "sglang":
        yield from native(pair)


def native(pair):
    sampling = {"temperature": 0, "max_new_tokens": 12}
    for more in ({}, {"stream": True}):
        how = ", streamed" if more else ""
        yield f"/generate{how}", GENERATE, {"text": pair.words(150), "sampling_params": sampling, **more}, True
        yield f"/generate, token ids{how}", GENERATE, {
            "input_ids": pair.tokens(200), "sampling_params": sampling, **more}, True
        yield f"/generate, a list of texts{how}", GENERATE, {
            "text": [pair.words(60), pair.words(90)], "sampling_params": sampling, **more}, True
        yield f"/generate, two samples{how}", GENERATE, {
            "text": pair.words(60), "sampling_params": {**sampling, "n": 2}, **more}, True
        yield f"/generate, log probabilities of the prompt{how}", GENERATE, {
            "text": pair.words(40), "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0, **more}, True


def stops_at_once(pair):
    """A stop at the first token: an answer of no text, and nothing hangs."""
    body = completion(pair)
    first = json.loads(post(pair.plain + COMPLETIONS, {**body, "max_tokens": 1})[1])["choices"][0]["text"]
    answers.same(pair, COMPLETIONS, {**body, "stop": [first]})
    return answers.same(pair, COMPLETIONS, {**body, "stop": [first], "stream": True})


def samples_differ(pair):
    """With a temperature each sample is one of its own."""
    body = {**completion(pair, n=4, seed=1), "temperature": 1.0}
    got = answers.told(COMPLETIONS, *post(pair.gateway + COMPLETIONS, body), body)
    texts = [got["choices"][i]["text"] for i in range(4)]
    assert len(got["choices"]) == 4 and all(texts), got
    return f"{len(set(texts))} different"


def counts(pair):
    body = {"model": MODEL, "messages": [{"role": "user", "content": pair.words(100)}]}
    want, got = post(pair.plain + COUNT, body), post(pair.gateway + COUNT, body)
    assert got[0] == want[0] == 200 and json.loads(got[1]) == json.loads(want[1]), (got, want)
    return got[1]


def refusals(pair, path, body):
    """What the plain engine refuses is refused, with its status and its words."""
    want, got = post(pair.plain + path, body), post(pair.gateway + path, body)
    assert want[0] is not None and got[0] == want[0] >= 400, f"{got} is not like {want}"
    said = json.loads(want[1])
    said = (said.get("error") or said) if isinstance(said, dict) else said
    message = said.get("message") if isinstance(said, dict) else None
    if message and message[:60] not in json.loads(got[1])["error"]["message"]:
        raise AssertionError(f"{got} does not say what {want} says")
    return f"{got[0]}"


def rerank(pair):
    """A model that generates does not rank: the engine says so, in its own way, and lives."""
    body = {"model": MODEL, "query": "a fish", "documents": [pair.words(5), pair.words(5)]}
    want = post(pair.plain + "/v1/rerank", body)
    told = [post(pair.gateway + path, body) for path in ("/v1/rerank", "/rerank")]
    assert all((got[0] == 200) == (want[0] == 200) and got[0] for got in told), f"{told} is not like {want}"
    if want[0] == 200:
        assert like(json.loads(told[0][1]), json.loads(want[1])), (told, want)
    pair.alive()
    return f"{want[0]} from the plain engine, {told[0][0]} here"


def check(pair):
    for title, path, body, moves in cases(pair):
        pair.run(title, answers.same, pair, path, body, moves)
    pair.run("a stop at the first token", stops_at_once, pair)
    pair.run("samples with a temperature", samples_differ, pair)
    pair.run("tokens are counted", counts, pair)
    pair.run("rerank", rerank, pair)
    for title, path, body in (
            ("a temperature below zero", COMPLETIONS, completion(pair, temperature=-1)),
            ("more tokens than the context has", CHAT, chat(pair, max_tokens=99999)),
            ("a prompt that is too long", COMPLETIONS, completion(pair, prompt=pair.tokens(2500))),
            ("a member of the wrong type", COMPLETIONS, completion(pair, top_p="much"))):
        pair.run(f"refused: {title}", refusals, pair, path, body)
    pair.run("all APIs, and then", pair.at_rest)
