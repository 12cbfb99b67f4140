#!/usr/bin/env python3
"""Tries a running server with the clients that people use: the packages `openai` and `anthropic`.

    python -m venv venv && venv/bin/pip install openai anthropic
    venv/bin/python scripts/clients.py http://127.0.0.1:8000 [--key KEY]

Checks shapes and rules, not what the model says, so that any model whose template knows tools passes: calls are forced.
"""

import argparse
import json
import sys
import time
import traceback

import anthropic
import openai

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


HELLO = [{"role": "user", "content": "Say hello in three words."}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
OPENAI_TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": PARAMETERS}}
]
ANTHROPIC_TOOLS = [{"name": "get_weather", "description": "Weather of a city", "input_schema": PARAMETERS}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def is_person(text):
    person = json.loads(text)
    assert set(person) == {"name", "age"} and isinstance(person["name"], str) and isinstance(person["age"], int), person


# ---- OpenAI ----


@check
def openai_models(c):
    models = c.openai.models.list().data
    assert len(models) == 1 and models[0].object == "model"
    assert c.openai.models.retrieve(models[0].id).id == models[0].id


@check
def openai_unknown_model(c):
    try:
        c.openai.models.retrieve("no-such-model")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error
    else:
        raise AssertionError("no error")


@check
def openai_chat(c):
    answer = c.openai.chat.completions.create(model=c.model, messages=HELLO, max_tokens=40, temperature=0)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length"), choice
    usage = answer.usage
    assert usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 40
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0


@check
def openai_stream(c):
    asked = dict(model=c.model, messages=HELLO, max_tokens=40, temperature=0, seed=1)
    whole = c.openai.chat.completions.create(**asked).choices[0].message
    text, reasoning, finish, usage = "", "", None, None
    stream = c.openai.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    for chunk in stream:
        if chunk.usage:
            usage = chunk.usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
    assert finish in ("stop", "length") and usage.completion_tokens > 0
    assert text == (whole.content or ""), (text, whole.content)
    assert reasoning == (getattr(whole, "reasoning_content", None) or "")


@check
def openai_stop_and_length(c):
    answer = c.openai.chat.completions.create(model=c.model, messages=HELLO, max_tokens=1)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 1
    answer = c.openai.chat.completions.create(
        model=c.model, messages=HELLO, max_tokens=60, stop=[" ", "\n"], extra_body=c.no_thinking
    )
    assert " " not in (answer.choices[0].message.content or "")


@check
def openai_several_and_logprobs(c):
    answer = c.openai.chat.completions.create(
        model=c.model, messages=HELLO, max_tokens=5, n=2, seed=3, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        tokens = choice.logprobs.content
        assert 0 < len(tokens) <= 5 and all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens)


@check
def openai_seed(c):
    def ask():
        answer = c.openai.chat.completions.create(model=c.model, messages=HELLO, max_tokens=30, temperature=1.5, seed=11)
        return answer.choices[0].message.content

    assert ask() == ask()


@check
def openai_tools(c):
    asked = dict(model=c.model, messages=WEATHER, tools=OPENAI_TOOLS, max_tokens=400)
    answer = c.openai.chat.completions.create(**asked, tool_choice="required", extra_body=c.no_thinking)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls", choice
    call = choice.message.tool_calls[0]
    assert call.type == "function" and call.function.name == "get_weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)
    # The result goes back with the call, as agents do it.
    messages = WEATHER + [
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    answer = c.openai.chat.completions.create(model=c.model, messages=messages, tools=OPENAI_TOOLS, max_tokens=30)
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


@check
def openai_tools_streamed(c):
    named = {"type": "function", "function": {"name": "get_weather"}}
    stream = c.openai.chat.completions.create(
        model=c.model, messages=WEATHER, tools=OPENAI_TOOLS, tool_choice=named, stream=True, max_tokens=400,
        extra_body=c.no_thinking,
    )
    name, arguments, finish = "", "", None
    for chunk in stream:
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                if call.index == 0:
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
    assert name == "get_weather" and finish == "tool_calls", (name, finish)
    assert isinstance(json.loads(arguments)["city"], str)


@check
def openai_json_schema(c):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    answer = c.openai.chat.completions.create(
        model=c.model, messages=[{"role": "user", "content": "A person as JSON."}], response_format=form, max_tokens=400
    )
    assert answer.choices[0].finish_reason == "stop", answer.choices[0]
    is_person(answer.choices[0].message.content)


@check
def openai_json_object(c):
    answer = c.openai.chat.completions.create(
        model=c.model, messages=[{"role": "user", "content": "A person as JSON."}],
        response_format={"type": "json_object"}, max_tokens=400,
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


@check
def openai_completions(c):
    answer = c.openai.completions.create(model=c.model, prompt=["Once upon", "A heart"], max_tokens=5, echo=True, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text.startswith("Once upon") and answer.choices[1].text.startswith("A heart")
    text = "".join(
        chunk.choices[0].text for chunk in c.openai.completions.create(model=c.model, prompt="Once upon", max_tokens=5, stream=True)
    )
    assert text


@check
def openai_errors(c):
    for wrong, word in [
        (dict(messages=[]), "messages"),
        (dict(messages=HELLO, temperature=9), "temperature"),
        (dict(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]), "only text"),
    ]:
        try:
            c.openai.chat.completions.create(model=c.model, **wrong)
        except openai.BadRequestError as error:
            assert word in error.message and error.type == "invalid_request_error", error
        else:
            raise AssertionError(f"no error for {wrong}")


@check
def openai_goes_away(c):
    stream = c.openai.chat.completions.create(model=c.model, messages=HELLO, max_tokens=300, stream=True)
    next(iter(stream))
    stream.close()
    # The server is still there for others.
    assert c.openai.chat.completions.create(model=c.model, messages=HELLO, max_tokens=2).usage.completion_tokens > 0


# ---- Anthropic ----


@check
def anthropic_models(c):
    models = c.anthropic.models.list().data
    assert len(models) == 1 and models[0].type == "model"


@check
def anthropic_message(c):
    message = c.anthropic.messages.create(model=c.model, max_tokens=40, system="Be brief.", messages=HELLO)
    assert message.role == "assistant" and message.stop_reason in ("end_turn", "max_tokens"), message
    assert message.usage.output_tokens > 0
    counted = c.anthropic.messages.count_tokens(model=c.model, system="Be brief.", messages=HELLO)
    assert counted.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens


@check
def anthropic_stream(c):
    with c.anthropic.messages.stream(model=c.model, max_tokens=40, messages=HELLO) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    said = "".join(block.text for block in message.content if block.type == "text")
    assert text == said and message.stop_reason in ("end_turn", "max_tokens"), message
    assert message.usage.output_tokens > 0


@check
def anthropic_events_in_order(c):
    names = [event.type for event in c.anthropic.messages.create(model=c.model, max_tokens=10, messages=HELLO, stream=True)]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"], names
    opened = None
    for name in names[1:-2]:
        assert name == {None: "content_block_start"}.get(opened, name), names
        opened = {"content_block_start": "open", "content_block_stop": None}.get(name, opened)
    assert opened is None


@check
def anthropic_tools(c):
    asked = dict(model=c.model, max_tokens=400, messages=WEATHER, tools=ANTHROPIC_TOOLS)
    message = c.anthropic.messages.create(**asked, tool_choice={"type": "any"})
    assert message.stop_reason == "tool_use", message
    call = next(block for block in message.content if block.type == "tool_use")
    assert call.name == "get_weather" and isinstance(call.input["city"], str)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    messages = WEATHER + [
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]},
        {"role": "user", "content": [result]},
    ]
    message = c.anthropic.messages.create(model=c.model, max_tokens=30, messages=messages, tools=ANTHROPIC_TOOLS)
    assert message.stop_reason in ("end_turn", "max_tokens", "tool_use")


@check
def anthropic_tools_streamed(c):
    choice = {"type": "tool", "name": "get_weather"}
    with c.anthropic.messages.stream(
        model=c.model, max_tokens=400, messages=WEATHER, tools=ANTHROPIC_TOOLS, tool_choice=choice
    ) as stream:
        message = stream.get_final_message()
    call = next(block for block in message.content if block.type == "tool_use")
    assert call.name == "get_weather" and isinstance(call.input["city"], str)


@check
def anthropic_stop_sequence(c):
    message = c.anthropic.messages.create(model=c.model, max_tokens=60, messages=HELLO, stop_sequences=[" "])
    assert message.stop_reason in ("stop_sequence", "end_turn", "max_tokens")
    assert message.stop_reason != "stop_sequence" or message.stop_sequence == " "


@check
def anthropic_errors(c):
    try:
        c.anthropic.messages.create(model=c.model, max_tokens=5, messages=[])
    except anthropic.BadRequestError as error:
        assert error.body["error"]["type"] == "invalid_request_error", error
        assert "messages" in error.body["error"]["message"]
    else:
        raise AssertionError("no error")


class Clients:
    def __init__(self, url, key):
        # Clients that try again would hide what goes wrong.
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=300)
        self.anthropic = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=300)
        self.model = self.openai.models.list().data[0].id
        self.no_thinking = {"chat_template_kwargs": {"enable_thinking": False}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="such as http://127.0.0.1:8000")
    parser.add_argument("--key", default="none", help="the server's API key")
    parser.add_argument("--only", default="", help="run checks whose name contains this")
    args = parser.parse_args()
    clients = Clients(args.url.rstrip("/"), args.key)
    failed = 0
    for function in CHECKS:
        if args.only not in function.__name__:
            continue
        started = time.monotonic()
        try:
            function(clients)
            outcome = "ok"
        except Exception:
            failed += 1
            outcome = "FAILED\n" + traceback.format_exc()
        print(f"{function.__name__:32} {time.monotonic() - started:6.2f} s  {outcome}", flush=True)
    print(f"{failed} failed" if failed else "all passed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
