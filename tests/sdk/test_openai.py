"""The OpenAI SDK for Python against Baton and simulated engines.

usage: test_openai.py --baton BINARY [NAME...]

Each function `check_*` is a check. Those of the first part run once for each kind of engine; after each of them the
engines must be at rest, all KV blocks free, and no hand-off wrong. The texts of the simulated engines follow from the
prompt, so that a lost, doubled or foreign piece shows.
"""

import asyncio
import contextlib

import openai
from checks import run, started, strands
from cluster import TOOL, Gateway, ScriptedWorker

MODEL = "sim"
PROMPT = "The quick cat reads a new book near the old river while the small fish sings in the morning rain"
MESSAGES = [{"role": "system", "content": "You read."}, {"role": "user", "content": PROMPT}]
KEY = "sdk-key"


def raised(kind, ask):
    """The exception of this very type that `ask` raises."""
    try:
        got = ask()
    except openai.OpenAIError as error:
        assert type(error) is kind, f"{type(error).__name__}, not {kind.__name__}: {error}"
        return error
    raise AssertionError(f"no {kind.__name__}: {got!r:.300}")


def refused(kind, ask, status, code):
    """As `raised`, with the status and code of Baton's errors."""
    error = raised(kind, ask)
    assert (error.status_code, error.code) == (status, code), (error.status_code, error.code, str(error))
    assert error.request_id and error.message, error
    return error


def client_of(url, key="unused", **more):
    """A client that neither retries nor hides anything."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, **{"max_retries": 0, "timeout": 60, **more})


def joined(chunks):
    """The text of a streamed chat or completion, and why it ended."""
    text, reason = "", None
    for chunk in chunks:
        for choice in chunk.choices:
            piece = choice.delta.content if hasattr(choice, "delta") else choice.text
            text += piece or ""
            reason = choice.finish_reason or reason
    return text, reason


class Case:
    """What a check of the first part gets."""

    def __init__(self, demo):
        self.demo, self.engine, self.url = demo, demo.engine, demo.url
        self.client = client_of(demo.url)

    def chat(self, client=None, **more):
        more = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, **more}
        return (client or self.client).chat.completions.create(**more)

    def complete(self, client=None, **more):
        more = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, **more}
        return (client or self.client).completions.create(**more)

    @contextlib.contextmanager
    def moving(self, handoffs):
        """The engines see so many right hand-offs meanwhile."""
        before = self.demo.rest()["handoffs"]["right"]
        yield
        after = self.demo.rest()["handoffs"]["right"]
        assert after - before == handoffs, f"{after - before} hand-offs, not {handoffs}"


# Part one: for each kind of engine.


def check_models(case):
    assert [model.id for model in case.client.models.list()] == [MODEL]
    assert case.client.models.retrieve(MODEL).id == MODEL
    refused(openai.NotFoundError, lambda: case.client.models.retrieve("nobody's"), 404, "model_not_found")


def check_chat(case):
    with case.moving(1):
        answer = case.chat()
    choice = answer.choices[0]
    assert len(choice.message.content.split()) == 12 and choice.message.role == "assistant", choice
    assert choice.finish_reason == "length", choice
    usage = answer.usage
    assert usage.completion_tokens == 12 and usage.total_tokens == usage.prompt_tokens + 12, usage


def check_chat_names_its_workers(case):
    raw = case.client.chat.completions.with_raw_response.create(
        model=MODEL, messages=MESSAGES, max_tokens=3, extra_headers={"x-request-id": "sdk-1"}
    )
    ids = {worker["worker_type"]: set() for worker in case.demo.workers}
    for worker in case.demo.workers:
        ids[worker["worker_type"]].add(worker["id"])
    assert raw.headers["x-baton-prefill"] in ids["prefill"], raw.headers
    assert raw.headers["x-baton-decode"] in ids["decode"], raw.headers
    assert raw.headers["x-request-id"] == raw.request_id == "sdk-1", raw.headers
    assert raw.parse().choices[0].message.content


def check_chat_streamed(case):
    with case.moving(2):
        whole = case.chat().choices[0].message.content
        with case.chat(stream=True) as stream:
            chunks = list(stream)
    assert joined(chunks) == (whole, "length"), chunks
    assert len(chunks) > 6, f"{len(chunks)} chunks for 12 tokens"
    assert all(chunk.usage is None for chunk in chunks), chunks
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def check_chat_streamed_with_usage(case):
    chunks = list(case.chat(stream=True, stream_options={"include_usage": True}))
    assert joined(chunks) == (case.chat().choices[0].message.content, "length")
    last = chunks[-1]
    assert last.choices == [] and last.usage.completion_tokens == 12, last


def check_chat_stream_of_the_sdk(case):
    """The SDK's own reading of a stream, with its events and its sum."""
    words = case.chat().choices[0].message.content.split()
    # The SDK takes an answer that was cut for an error, so this one ends at a word.
    with case.client.chat.completions.stream(model=MODEL, messages=MESSAGES, stop=words[11]) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        message = stream.get_final_completion().choices[0].message
    assert "".join(pieces) == message.content and message.content.split() == words[: words.index(words[11])], message


def check_chat_max_completion_tokens(case):
    with case.moving(1):
        answer = case.client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=5)
    assert answer.usage.completion_tokens == 5, answer.usage


def check_completions(case):
    with case.moving(1):
        answer = case.complete()
    assert len(answer.choices[0].text.split()) == 12 and answer.choices[0].finish_reason == "length", answer
    assert answer.usage.completion_tokens == 12 and answer.object == "text_completion", answer


def check_completions_streamed(case):
    with case.moving(2):
        whole = case.complete().choices[0].text
        chunks = list(case.complete(stream=True, stream_options={"include_usage": True}))
    assert joined(chunks) == (whole, "length"), chunks
    assert chunks[-1].usage.completion_tokens == 12, chunks[-1]


def check_completions_of_token_ids(case):
    with case.moving(1):
        answer = case.complete(prompt=list(range(500, 540)))
    assert answer.usage.prompt_tokens == 40 and answer.choices[0].text, answer


def check_completions_of_two_prompts(case):
    single = [case.complete(prompt=prompt).choices[0].text for prompt in ("one fish", "two fish")]
    answer = case.complete(prompt=["one fish", "two fish"])
    assert [choice.text for choice in sorted(answer.choices, key=lambda c: c.index)] == single, answer


def check_n(case):
    """With SGLang each sample is a request of its own to both engines: samples that share a room stall there."""
    one = case.chat().choices[0].message.content
    answer = case.chat(n=2)
    first, second = sorted(answer.choices, key=lambda c: c.index)
    assert first.message.content == one and second.message.content, answer
    # A simulated engine says something else in each sample of one request, and the same to two equal requests.
    assert (second.message.content == one) == (case.demo.engine == "sglang"), answer
    assert answer.usage.completion_tokens == 24, answer.usage
    texts = ["", ""]
    for chunk in case.chat(n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [first.message.content, second.message.content], texts


def check_stop(case):
    words = case.chat().choices[0].message.content.split()
    at = next(i for i in range(3, 12) if words[i] not in words[:i])
    with case.moving(2):
        choice = case.chat(stop=[words[at], "never"]).choices[0]
        text, reason = joined(case.chat(stop=words[at], stream=True))
    assert choice.finish_reason == reason == "stop", (choice, reason)
    assert choice.message.content.split() == text.split() == words[:at], (choice, text, words)


def check_chat_logprobs(case):
    with case.moving(2):
        choice = case.chat(logprobs=True, top_logprobs=1).choices[0]
        chunks = list(case.chat(logprobs=True, top_logprobs=1, stream=True))
    tokens = choice.logprobs.content
    assert len(tokens) == 12 and "".join(t.token for t in tokens) == choice.message.content, tokens
    assert all(t.logprob <= 0 and t.top_logprobs[0].token == t.token for t in tokens), tokens
    streamed = [t for chunk in chunks for c in chunk.choices if c.logprobs for t in c.logprobs.content]
    assert [(t.token, t.logprob) for t in streamed] == [(t.token, t.logprob) for t in tokens], streamed


def check_completions_logprobs(case):
    with case.moving(1):
        choice = case.complete(logprobs=1).choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text and len(choice.logprobs.token_logprobs) == 12, choice


def check_unusual_members_do_no_harm(case):
    more = {
        "temperature": 0.70, "top_p": 1, "seed": 9007199254740993, "user": "ü \U0001f600", "presence_penalty": 0,
        "response_format": {"type": "text"}, "extra_body": {"x_unknown": {"deep": [None, 1e3]}},
    }
    with case.moving(1):
        answer = case.chat(**more)
    assert answer.choices[0].message.content == case.chat().choices[0].message.content


def check_crafted_handoff_members_are_ignored(case):
    crafted = {
        "kv_transfer_params": {"do_remote_prefill": True},
        "bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 1, "data_parallel_rank": 7,
    }
    with case.moving(1):
        answer = case.chat(extra_body=crafted)
    assert answer.choices[0].message.content == case.chat().choices[0].message.content
    assert case.demo.stats()["deaths"] == 0


def check_async_clients(case):
    one = case.chat().choices[0].message.content

    async def all_at_once():
        async with openai.AsyncOpenAI(base_url=f"{case.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:

            async def plain():
                return (await case.chat(client)).choices[0].message.content

            async def streamed():
                return joined([chunk async for chunk in await case.chat(client, stream=True)])[0]

            async def models():
                return [model.id async for model in client.models.list()][0]

            return await asyncio.gather(*[plain() for _ in range(8)], *[streamed() for _ in range(8)], models())

    with case.moving(16):
        answers = asyncio.run(all_at_once())
    assert answers == [one] * 16 + [MODEL], answers


def check_async_errors(case):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{case.url}/v1", api_key="unused", max_retries=0) as client:
            await case.chat(client, model="nobody's")

    refused(openai.NotFoundError, lambda: asyncio.run(ask()), 404, "model_not_found")


def check_unknown_model(case):
    error = refused(openai.NotFoundError, lambda: case.chat(model="nobody's"), 404, "model_not_found")
    assert MODEL in error.message, error.message
    refused(openai.NotFoundError, lambda: case.complete(model="nobody's", stream=True), 404, "model_not_found")


def check_unknown_route(case):
    refused(openai.NotFoundError, lambda: case.client.files.list(), 404, "unknown_url")


def check_wrong_types(case):
    for more in ({"stream": "yes"}, {"max_tokens": "many"}, {"n": "two"}):
        error = raised(openai.BadRequestError, lambda: case.chat(extra_body=more))
        assert error.status_code == 400 and error.message, error
    error = raised(openai.BadRequestError, lambda: case.complete(extra_body={"prompt": {"a": 1}}))
    assert error.status_code == 400, error


def check_refusal_of_an_engine(case):
    """Both engines refuse this one; the SDK shows the engine's own words."""
    error = raised(openai.BadRequestError, lambda: case.chat(max_tokens=1_000_000))
    assert error.status_code == 400 and "32768" in error.message, error.message


@strands
def check_busy_engine(case):
    case.demo.fault("decode", kind="status", status=429, times=0)
    error = raised(openai.RateLimitError, case.chat)
    assert error.status_code == 429 and error.message, error
    case.demo.disarm()
    assert case.chat().choices[0].message.content


@strands
def check_failing_engine(case):
    case.demo.fault("decode", kind="status", status=500, times=0)
    error = raised(openai.InternalServerError, case.chat)
    assert error.status_code == 500 and error.code == "decode_internal_error", (error.status_code, error.code)
    case.demo.disarm()


@strands
def check_gateway_retries_by_itself(case):
    whole = case.chat().choices[0].message.content
    case.demo.fault("decode", kind="reset", times=1)
    assert case.chat().choices[0].message.content == whole
    case.demo.fault("prefill", kind="status", status=503, times=1)
    assert joined(case.chat(stream=True))[0] == whole


@strands
def check_stream_that_breaks(case):
    """A decode engine that is lost after the first tokens: an exception, never a short text that looks whole."""
    case.demo.fault("decode", kind="reset", chunks=4, times=0)
    pieces = []

    def read():
        for chunk in case.chat(stream=True, max_tokens=64):
            pieces.append(chunk)

    error = raised(openai.APIError, read)
    assert error.code == "decode_read_failed" and 0 < len(pieces) < 64, (error.code, len(pieces))


@strands
def check_error_event_of_an_engine(case):
    case.demo.fault("decode", kind="error_event", chunks=4, times=0)
    error = raised(openai.APIError, lambda: list(case.chat(stream=True, max_tokens=64)))
    assert error.message, error


def check_timeout_of_the_client(case):
    """An answer that takes longer than the client waits: the engines are free before they would have been done."""
    before = case.demo.rest()["requests"]
    raised(openai.APITimeoutError, lambda: case.chat(max_tokens=250, timeout=0.3))
    after = case.demo.rest()["requests"]
    assert after["aborted"] == before["aborted"] + 1, (before, after)


@strands
def check_timeout_of_the_client_on_a_hung_engine(case):
    case.demo.fault("decode", kind="stall", times=0)
    raised(openai.APITimeoutError, lambda: case.chat(timeout=0.3))


def check_client_that_leaves_a_stream(case):
    before = case.demo.rest()["requests"]
    stream = case.chat(stream=True, max_tokens=250)
    assert [next(stream) for _ in range(4)]
    stream.close()
    after = case.demo.rest()["requests"]
    assert after["aborted"] == before["aborted"] + 1, (before, after)


def check_async_client_that_leaves_a_stream(case):
    before = case.demo.rest()["requests"]

    async def leave():
        async with openai.AsyncOpenAI(base_url=f"{case.url}/v1", api_key="unused", max_retries=0) as client:
            async with await case.chat(client, stream=True, max_tokens=250) as stream:
                await anext(stream)

    asyncio.run(leave())
    after = case.demo.rest()["requests"]
    assert after["aborted"] == before["aborted"] + 1, (before, after)


# Part two: gateways with other settings. Each check gets the path of the binary and a demo.


def check_api_key(baton, demo):
    with started(Gateway(baton, workers=demo.workers, key=KEY)) as gateway:
        case = Case(demo)

        def ask(key):
            return lambda: case.chat(client_of(gateway.url, key))

        assert ask(KEY)().choices[0].message.content
        refused(openai.AuthenticationError, ask("another"), 401, "invalid_api_key")
        refused(openai.AuthenticationError, ask(KEY + "x"), 401, "invalid_api_key")
        basic = {"Authorization": f"Basic {KEY}"}
        refused(openai.AuthenticationError, lambda: case.chat(extra_headers=basic, client=client_of(gateway.url)), 401,
                "invalid_api_key")


def check_full_gateway(baton, demo):
    flags = ["--max-concurrent-requests", "1", "--queue-size", "0"]
    with started(Gateway(baton, flags, demo.workers)) as gateway:
        case, client = Case(demo), client_of(gateway.url)
        with case.chat(client, stream=True, max_tokens=200) as stream:
            next(stream)
            error = refused(openai.RateLimitError, lambda: case.chat(client), 429, "admission_queue_full")
            assert int(error.response.headers["retry-after"]) >= 1, error.response.headers
        patient = client_of(gateway.url, max_retries=5)
        assert case.chat(patient).choices[0].message.content


def check_gateway_without_workers(baton, demo):
    with started(Gateway(baton)) as gateway:
        error = raised(openai.InternalServerError, lambda: Case(demo).chat(client_of(gateway.url)))
        assert error.status_code == 503 and error.code in ("no_models_available", "no_available_workers"), error


def check_no_gateway(baton, demo):
    with started(Gateway(baton)) as gateway:
        url = gateway.url
    raised(openai.APIConnectionError, lambda: Case(demo).chat(client_of(url)))


def check_tools(baton, demo):
    """Tools, their choice and other members reach both engines as they were sent, and the calls come back."""
    members = {
        "tools": [{"type": "function", "function": {
            "name": "weather", "strict": True,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
    }
    past = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": None, "tool_calls": [TOOL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "-3 °C"}]
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(started(ScriptedWorker(role))) for role in ("prefill", "decode")]
        gateway = stack.enter_context(started(Gateway(baton, workers=[worker.description for worker in workers])))
        client = client_of(gateway.url)
        ask = {"model": "scripted", "messages": past, "max_tokens": 64, **members}
        plain = client.chat.completions.create(**ask).choices[0]
        assert plain.finish_reason == "tool_calls", plain
        assert plain.message.tool_calls[0].model_dump(exclude_none=True) == TOOL, plain
        with client.chat.completions.stream(**ask) as stream:
            last = stream.get_final_completion().choices[0].message.tool_calls[0]
        assert (last.id, last.function.name, last.function.arguments) == (
            TOOL["id"], TOOL["function"]["name"], TOOL["function"]["arguments"]), last
        for worker in workers:
            assert len(worker.bodies) == 2, (worker.role, worker.bodies)
            for body in worker.bodies:
                assert {key: body[key] for key in members} == members, (worker.role, body)
                assert body["messages"] == past, (worker.role, body)


if __name__ == "__main__":
    run(__doc__, globals(), Case)
