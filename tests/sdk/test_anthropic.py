"""The Anthropic SDK for Python against Baton and simulated engines.

usage: test_anthropic.py --baton BINARY [NAME...]

As test_openai.py: the texts of the simulated engines follow from the prompt, so that a lost, doubled or foreign piece
shows, and after each check the engines must be at rest.
"""

import asyncio
import contextlib

import anthropic
from checks import run, started, strands
from cluster import TOOL_USE, Gateway, ScriptedWorker

MODEL = "sim"
PROMPT = "The quick cat reads a new book near the old river while the small fish sings in the morning rain"
MESSAGES = [{"role": "user", "content": PROMPT}]
KEY = "sdk-key"


def raised(kind, ask):
    """The exception of this very type that `ask` raises."""
    try:
        got = ask()
    except anthropic.AnthropicError as error:
        assert type(error) is kind, f"{type(error).__name__}, not {kind.__name__}: {error}"
        return error
    raise AssertionError(f"no {kind.__name__}: {got!r:.300}")


def refused(kind, ask, status, name, code):
    """As `raised`, with the status, Anthropic's name of the error, and Baton's code."""
    error = raised(kind, ask)
    said = error.response.headers["x-smg-error-code"]
    assert (error.status_code, error.type, said) == (status, name, code), (error.status_code, error.type, said)
    assert error.api_message and error.request_id and error.request_id == error.body["request_id"], error.body
    return error


def client_of(url, **more):
    """A client that neither retries nor hides anything."""
    more = {"api_key": "unused", "max_retries": 0, "timeout": 60, **more}
    return anthropic.Anthropic(base_url=url, **more)


def joined(events):
    """The text of a streamed message, and why it ended."""
    text, reason = "", None
    for event in events:
        if event.type == "content_block_delta":
            text += event.delta.text
        elif event.type == "message_delta":
            reason = event.delta.stop_reason
    return text, reason


class Case:
    """What a check of the first part gets."""

    def __init__(self, demo):
        self.demo, self.engine, self.url = demo, demo.engine, demo.url
        self.client = client_of(demo.url)

    def create(self, client=None, **more):
        more = {"model": MODEL, "messages": MESSAGES, "system": "You read.", "max_tokens": 12, **more}
        return (client or self.client).messages.create(**more)

    def count(self, client=None, **more):
        more = {"model": MODEL, "messages": MESSAGES, "system": "You read.", **more}
        return (client or self.client).messages.count_tokens(**more).input_tokens

    @contextlib.contextmanager
    def moving(self, handoffs):
        """The engines see so many right hand-offs meanwhile."""
        before = self.demo.rest()["handoffs"]["right"]
        yield
        after = self.demo.rest()["handoffs"]["right"]
        assert after - before == handoffs, f"{after - before} hand-offs, not {handoffs}"


# Part one: for each kind of engine.


def check_message(case):
    with case.moving(1):
        message = case.create()
    assert message.role == "assistant" and message.type == "message" and message.model == MODEL, message
    assert len(message.content) == 1 and len(message.content[0].text.split()) == 12, message
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 12, message
    assert message._request_id.startswith("msg_"), message._request_id


def check_message_streamed(case):
    whole = case.create().content[0].text
    with case.moving(1), case.create(stream=True) as stream:
        events = list(stream)
    assert joined(events) == (whole, "max_tokens"), events
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"], kinds
    assert kinds[2:14] == ["content_block_delta"] * 12, kinds
    assert kinds[14:] == ["content_block_stop", "message_delta", "message_stop"], kinds


def check_stream_of_the_sdk(case):
    whole = case.create().content[0].text
    ask = {"model": MODEL, "messages": MESSAGES, "system": "You read.", "max_tokens": 12}
    with case.client.messages.stream(**ask) as stream:
        assert "".join(stream.text_stream) == whole
        message = stream.get_final_message()
    assert message.content[0].text == whole and message.usage.output_tokens == 12, message
    assert stream.request_id.startswith("msg_"), stream.request_id


def check_async_clients(case):
    whole = case.create().content[0].text

    async def several():
        async with anthropic.AsyncAnthropic(base_url=case.url, api_key="unused", max_retries=0) as client:
            asks = [case.create(client) for _ in range(8)]
            async with await case.create(client, stream=True) as stream:
                streamed = joined([event async for event in stream])[0]
            return [message.content[0].text for message in await asyncio.gather(*asks)] + [streamed]

    assert set(asyncio.run(several())) == {whole}


def check_one_token_and_stop_sequences(case):
    one = case.create(max_tokens=1)
    assert len(one.content[0].text.split()) == 1 and one.stop_reason == "max_tokens", one
    words = case.create(max_tokens=20).content[0].text.split()
    stopped = case.create(max_tokens=20, stop_sequences=[words[5]])
    assert stopped.content[0].text.split() == words[:5] and stopped.stop_reason == "stop_sequence", stopped


def check_members_that_say_more(case):
    """System as blocks, cache marks, a picture, metadata, thinking, a tool: all are taken."""
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    mark = {"type": "ephemeral"}
    message = case.create(
        system=[{"type": "text", "text": "You read.", "cache_control": mark}],
        messages=[{"role": "user", "content": [picture, {"type": "text", "text": PROMPT, "cache_control": mark}]}],
        metadata={"user_id": "u-1"}, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1100,
        tools=[{"name": "f", "input_schema": {"type": "object", "properties": {}}}],
        extra_body={"temperature": 0.5, "top_k": 5, "chat_template_kwargs": {"enable_thinking": False}},
    )
    assert message.content[0].text and message.stop_reason == "end_turn", message


def check_count_tokens(case):
    with case.moving(0):
        counted = case.count()
    assert counted == case.create().usage.input_tokens > 10, counted
    assert case.count(messages=[{"role": "user", "content": PROMPT + " and goes on"}]) > counted
    tools = [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]
    assert case.count(tools=tools, thinking={"type": "enabled", "budget_tokens": 2048}) >= counted


def check_count_tokens_names_its_worker(case):
    raw = case.client.messages.with_raw_response.count_tokens(model=MODEL, messages=MESSAGES)
    workers = {worker["url"]: worker["worker_type"] for worker in case.demo.workers}
    assert workers[raw.headers["x-smg-routed-worker-id"]] == "prefill", raw.headers
    assert "x-baton-decode" not in raw.headers and raw.headers["request-id"].startswith("msg_"), raw.headers


def check_beta_client(case):
    """It adds `?beta=true` to each path, and says in a header what it wants."""
    message = case.client.beta.messages.create(
        model=MODEL, messages=MESSAGES, system="You read.", max_tokens=12, betas=["some-beta-2025-01-01"]
    )
    assert message.content[0].text == case.create().content[0].text, message
    counted = case.client.beta.messages.count_tokens(model=MODEL, messages=MESSAGES, system="You read.")
    assert counted.input_tokens == case.count(), counted


def check_models(case):
    assert [model.id for model in case.client.models.list()] == [MODEL]
    assert case.client.models.retrieve(MODEL).id == MODEL
    refused(anthropic.NotFoundError, lambda: case.client.models.retrieve("nobodys"), 404, "not_found_error",
            "model_not_found")


def check_no_tokens(case):
    for stream in (False, True):
        refused(anthropic.BadRequestError, lambda: case.create(max_tokens=0, stream=stream), 400, "invalid_request_error",
                "max_tokens_zero_not_relayed")


def check_unknown_model(case):
    for ask in (case.create, case.count, lambda **more: case.create(stream=True, **more)):
        refused(anthropic.NotFoundError, lambda: ask(model="nobodys"), 404, "not_found_error", "model_not_found")


def check_wrong_types(case):
    wrong = {"stream": "yes"}
    refused(anthropic.BadRequestError, lambda: case.create(extra_body=wrong), 400, "invalid_request_error", "invalid_type")
    error = raised(anthropic.BadRequestError, lambda: case.create(extra_body={"stop_sequences": {"a": 1}}))
    assert error.type == "invalid_request_error" and error.api_message, error.body


def check_refusal_of_an_engine(case):
    """The SDK shows the engine's own words."""
    error = raised(anthropic.BadRequestError, lambda: case.create(max_tokens=1_000_000))
    assert error.type == "invalid_request_error" and "32768" in error.api_message, error.body


def check_what_is_not_served(case):
    refused(anthropic.HTTPNotImplementedError, lambda: case.client.messages.batches.list(), 501, "api_error",
            "not_implemented")


@strands
def check_busy_and_failing_engines(case):
    for status, kind, name, code in (
        (429, anthropic.RateLimitError, "rate_limit_error", "decode_error"),
        (500, anthropic.InternalServerError, "api_error", "decode_internal_error"),
        (503, anthropic.ServiceUnavailableError, "overloaded_error", "decode_unavailable"),
    ):
        case.demo.fault("decode", kind="status", status=status, times=0)
        refused(kind, case.create, status, name, code)
        assert case.count() > 10, "no decode has a part in counting"
        case.demo.disarm()
    assert case.create().content[0].text


def check_failing_prefills_of_a_count(case):
    case.demo.fault("prefill", kind="status", status=500, times=1)
    assert case.count() > 10, "the gateway tried another one"
    case.demo.fault("prefill", kind="status", status=503, retry_after=1, times=0)
    refused(anthropic.ServiceUnavailableError, case.count, 503, "overloaded_error", "prefill_unavailable")
    case.demo.disarm()


@strands
def check_gateway_retries_by_itself(case):
    whole = case.create().content[0].text
    case.demo.fault("decode", kind="reset", times=1)
    assert case.create().content[0].text == whole
    case.demo.fault("prefill", kind="status", status=503, times=1)
    assert joined(case.create(stream=True))[0] == whole


@strands
def check_stream_that_breaks(case):
    """A decode engine that is lost after the first tokens: an exception, never a short text that looks whole."""
    case.demo.fault("decode", kind="reset", chunks=6, times=0)
    pieces = []

    def read():
        for event in case.create(stream=True, max_tokens=64):
            pieces.append(event)

    error = raised(anthropic.APIStatusError, read)
    assert error.type == "api_error" and "decode" in error.api_message, error.body
    assert 0 < len(pieces) < 64 and error.request_id.startswith("msg_"), (len(pieces), error.request_id)


@strands
def check_error_event_of_an_engine(case):
    case.demo.fault("decode", kind="error_event", chunks=4, times=0)
    error = raised(anthropic.APIStatusError, lambda: list(case.create(stream=True, max_tokens=64)))
    assert error.api_message == "Internal server error", error.body


def check_timeout_of_the_client(case):
    before = case.demo.rest()["requests"]
    raised(anthropic.APITimeoutError, lambda: case.create(max_tokens=250, timeout=0.3))
    after = case.demo.rest()["requests"]
    assert after["aborted"] == before["aborted"] + 1, (before, after)


def check_client_that_leaves_a_stream(case):
    before = case.demo.rest()["requests"]
    stream = case.create(stream=True, max_tokens=250)
    assert [next(stream) for _ in range(4)]
    stream.close()
    after = case.demo.rest()["requests"]
    assert after["aborted"] == before["aborted"] + 1, (before, after)


# Part two: gateways with other settings. Each check gets the path of the binary and a demo.


def check_api_key(baton, demo):
    """As a key (`x-api-key`) or as a token (`Authorization`)."""
    with started(Gateway(baton, workers=demo.workers, key=KEY)) as gateway:
        case = Case(demo)
        for right in ({"api_key": KEY}, {"api_key": None, "auth_token": KEY}):
            client = client_of(gateway.url, **right)
            assert case.create(client).content[0].text and case.count(client) > 10, right
        for wrong in ({"api_key": KEY + "x"}, {"api_key": None, "auth_token": "other"}):
            for ask in (case.create, case.count):
                refused(anthropic.AuthenticationError, lambda: ask(client_of(gateway.url, **wrong)), 401,
                        "authentication_error", "invalid_api_key")


def check_full_gateway(baton, demo):
    flags = ["--max-concurrent-requests", "1", "--queue-size", "0"]
    with started(Gateway(baton, flags, demo.workers)) as gateway:
        case, client = Case(demo), client_of(gateway.url)
        with case.create(client, stream=True, max_tokens=200) as stream:
            next(stream)
            error = refused(anthropic.RateLimitError, lambda: case.create(client), 429, "rate_limit_error",
                            "admission_queue_full")
            assert int(error.response.headers["retry-after"]) >= 1, error.response.headers
        patient = client_of(gateway.url, max_retries=5)
        assert case.create(patient).content[0].text


def check_gateway_without_workers(baton, demo):
    with started(Gateway(baton)) as gateway:
        for ask in (Case(demo).create, Case(demo).count):
            error = raised(anthropic.ServiceUnavailableError, lambda: ask(client_of(gateway.url)))
            assert error.type == "overloaded_error", error.body


def check_no_gateway(baton, demo):
    with started(Gateway(baton)) as gateway:
        url = gateway.url
    raised(anthropic.APIConnectionError, lambda: Case(demo).create(client_of(url)))


def check_tools(baton, demo):
    """Tools, their choice and results reach both engines as they were sent, and the calls come back."""
    members = {
        "tools": [{"name": "weather", "input_schema": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}],
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    }
    result = {"type": "tool_result", "tool_use_id": TOOL_USE["id"], "content": [{"type": "text", "text": "-3 °C"}]}
    past = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": [TOOL_USE]},
            {"role": "user", "content": [result]}]
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(started(ScriptedWorker(role))) for role in ("prefill", "decode")]
        gateway = stack.enter_context(started(Gateway(baton, workers=[worker.description for worker in workers])))
        client = client_of(gateway.url)
        ask = {"model": "scripted", "messages": past, "max_tokens": 64, **members}
        plain = client.messages.create(**ask)
        assert plain.stop_reason == "tool_use" and plain.content[0].to_dict() == TOOL_USE, plain
        with client.messages.stream(**ask) as stream:
            last = stream.get_final_message()
        assert last.stop_reason == "tool_use" and last.content[0].to_dict() == TOOL_USE, last
        for worker in workers:
            assert len(worker.bodies) == 2, (worker.role, worker.bodies)
            for body in worker.bodies:
                assert {key: body[key] for key in members} == members, (worker.role, body)
                assert body["messages"] == past, (worker.role, body)


if __name__ == "__main__":
    run(__doc__, globals(), Case)
