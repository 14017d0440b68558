# SPDX-License-Identifier: Apache-2.0
"""Requests with prompts in text, as vLLM gives them to a tokenizer or a chat template."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from epp.pool.tokens.source import PromptRefusedError


class CompletionRequest(msgspec.Struct):
    """The prompts of a completion, and the fields that change their tokens."""

    prompt: str | list[str]
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    prompt_embeds: msgspec.Raw | None = None


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | msgspec.UnsetType = msgspec.UNSET


class _Tool(msgspec.Struct):
    function: _Function
    type: str = "function"


class ChatRequest(msgspec.Struct):
    """The fields of a chat that its template may use."""

    messages: list[dict[str, Any]]
    tools: list[_Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    truncate_prompt_tokens: int | None = None

    def tool_list(self) -> list[dict[str, Any]] | None:
        """Return the tools with the fields that vLLM knows, in its order."""
        if not self.tools:
            return None
        functions = [msgspec.structs.asdict(tool.function) for tool in self.tools]
        return [
            {"type": "function", "function": {key: found for key, found in each.items() if found is not msgspec.UNSET}}
            for each in functions
        ]

    def variables(self) -> dict[str, Any]:
        """Return further variables of the template; members of the request take precedence over its `kwargs`."""
        found = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            found.setdefault("enable_thinking", self.reasoning_effort != "none")
            found["reasoning_effort"] = self.reasoning_effort
        if self.documents is not None:
            found["documents"] = self.documents
        for name in ("messages", "tools", "continues", "chat_template", "tokenize"):
            found.pop(name, None)
        return found | {"add_generation_prompt": self.add_generation_prompt is not False}

    def conversation(self, *, parts: bool, developer: bool) -> list[dict[str, Any]]:
        """Return the messages with contents as lists of `parts`, or as texts; raises PromptRefusedError for media.

        If the template has no role `developer`, its messages have the role `system`.
        """
        messages = [_message(given, parts=parts) for given in self.messages]
        if developer or all(message["role"] != "developer" for message in messages):
            return messages
        return _with_one_system(messages)


def _with_one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with those of the developer as `system`; several of these are joined at the beginning."""
    system = [message for message in messages if message["role"] in {"system", "developer"}]
    others = [message for message in messages if message["role"] not in {"system", "developer"}]
    content = system[0]["content"]
    if len(system) > 1 or messages[0] is not system[0]:
        contents = [message["content"] for message in system]
        texts = [text if isinstance(text, str) else "\n".join(part["text"] for part in text) for text in contents]
        content = "\n\n".join(filter(None, texts))
    return [{"role": "system", "content": content}, *others]


def _message(given: Mapping[str, Any], *, parts: bool) -> dict[str, Any]:
    role = given.get("role")
    if not isinstance(role, str):
        raise PromptRefusedError
    texts = _texts(given.get("content"))
    as_parts = parts and role != "tool"
    message: dict[str, Any] = {
        "role": role,
        "content": [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts),
    }
    if role == "assistant":
        if given.get("tool_calls"):
            message["tool_calls"] = [_call(call) for call in given["tool_calls"]]
        if (reasoning := given.get("reasoning")) is not None:
            message |= {"reasoning": reasoning, "reasoning_content": reasoning}
    elif role == "tool" and "tool_call_id" in given:
        message["tool_call_id"] = given["tool_call_id"]
    elif role == "developer":
        message["tools"] = given.get("tools")
    if isinstance(given.get("name"), str):
        message["name"] = given["name"]
    return message


def _texts(content: object) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        found = [text for text in texts if isinstance(text, str)]
        if len(found) == len(content):
            return found
    raise PromptRefusedError


def _call(call: Any) -> dict[str, Any]:
    """Return a call of a tool, with its arguments as an object: an empty one where they are no JSON object."""
    arguments = call["function"].get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    if not isinstance(arguments, dict):
        arguments = {}
    return {**call, "function": {**call["function"], "arguments": arguments}}
