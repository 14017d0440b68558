# SPDX-License-Identifier: Apache-2.0
"""What agents ask of a server: tools, and the Responses API, with OpenAI's own client."""

import importlib
import json

import pytest

from epp.lab.sim.profile import SimProfile
from epp.lab.sim.server import running

WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}
CHAT_TOOLS = [{"type": "function", "function": WEATHER}]
TOOLS = [{"type": "function", **WEATHER}]
TALK = [
    {"role": "user", "content": "How is the weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]


@pytest.fixture
def openai():
    """The module, which takes half a second to import: only where these tests run."""
    return importlib.import_module("openai")


@pytest.fixture
async def client(openai):
    async with (
        running(SimProfile(model="agent-8b", time_scale=0.01)) as sim,
        openai.AsyncOpenAI(base_url=f"http://{sim.address}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


async def test_chat_with_tools_may_be_answered_in_words(client):
    answer = await client.chat.completions.create(model="agent-8b", messages=TALK, tools=CHAT_TOOLS, max_tokens=8)
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_tool_that_has_to_be_called_is_called(client, choice):
    answer = await client.chat.completions.create(model="agent-8b", messages=TALK, tools=CHAT_TOOLS, tool_choice=choice)
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, answer.choices[0].finish_reason) == ("weather", "tool_calls")
    assert json.loads(call.function.arguments)["text"]


async def test_tool_call_is_streamed_in_pieces(client):
    stream = await client.chat.completions.create(
        model="agent-8b", messages=TALK, tools=CHAT_TOOLS, tool_choice="required", stream=True
    )
    names, arguments, reasons = [], "", []
    async for chunk in stream:
        (choice,) = chunk.choices
        for call in choice.delta.tool_calls or []:
            names += [call.function.name] if call.function.name else []
            arguments += call.function.arguments
        reasons.append(choice.finish_reason)
    assert names == ["weather"]
    assert json.loads(arguments)["text"]
    assert reasons[-1] == "tool_calls"


async def test_choice_of_an_unreadable_tool_is_a_bad_request(client, openai):
    with pytest.raises(openai.BadRequestError, match="do not name a function"):
        await client.chat.completions.create(
            model="agent-8b", messages=TALK, tools=[{"type": "function"}], tool_choice={"function": 1}
        )


@pytest.mark.parametrize("given", ["Hello", [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]])
async def test_response_has_a_text_and_its_tokens(client, given):
    answer = await client.responses.create(model="agent-8b", input=given, instructions="Be brief.", max_output_tokens=5)
    assert answer.output_text
    assert (answer.status, answer.usage.output_tokens) == ("incomplete", 5)
    assert answer.usage.input_tokens > 0


async def test_response_is_streamed_as_events(client):
    kinds, text = [], ""
    async for event in await client.responses.create(model="agent-8b", input="Hello", stream=True):
        kinds.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
    begin, end = kinds[:4], kinds[-4:]
    assert [kind.removeprefix("response.") for kind in begin] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
    ]
    assert [kind.removeprefix("response.") for kind in end] == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert event.response.output_text == text
    assert event.response.usage.output_tokens == kinds.count("response.output_text.delta")


async def test_response_may_be_a_tool_call_and_its_output_the_next_input(client):
    answer = await client.responses.create(model="agent-8b", input="Hello", tools=TOOLS, tool_choice="required")
    (call,) = answer.output
    assert (call.type, call.name) == ("function_call", "weather")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    given = [{"role": "user", "content": "Hello"}, call.model_dump(), output]
    assert (await client.responses.create(model="agent-8b", input=given, tools=TOOLS)).output_text
