# SPDX-License-Identifier: Apache-2.0
"""Chat templates, rendered as in transformers and vLLM, in a sandbox with limits on size and time."""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from time import monotonic
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MOST_CHARACTERS = 8 * 1024 * 1024
_MOST_SECONDS = 2.0
_MARK = "a-text"
_TO_CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "


class _Generation(Extension):
    """The tag `generation`, which marks responses for training; its content is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012  declared by Jinja

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005  local time, as in transformers


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  as templates call it
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002  the same
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """One template for all chats, or a separate one for chats with tools."""

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """Compile the templates `default` and, if given, `tool_use`; raises ValueError."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
        try:
            compiled = {name: environment.from_string(text) for name, text in templates.items()}
        except (TemplateError, RecursionError) as error:
            raise ValueError(f"the chat template cannot be compiled: {error}") from error
        if "default" not in compiled:
            raise ValueError(f"the chat templates are {', '.join(templates) or 'none'}; one must be named default")
        self._default = compiled["default"]
        self._for_tools = compiled.get("tool_use", self._default)
        self._special_tokens = special_tokens
        self.has_developer_role = "developer" in templates["default"]
        self.takes_parts = False
        """Whether the content of a message must be a list of parts, not one text."""
        part = {"type": "text", "text": _MARK}
        with suppress(Exception):  # a template may raise anything
            text = self.render([{"role": "user", "content": [part]}], add_generation_prompt=True)
            self.takes_parts = _MARK in text and "'type'" not in text and '"type"' not in text

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        *,
        continues: bool = False,
        **variables: object,
    ) -> str:
        """Return the text; `continues` leaves the last message open. A template may raise any exception."""
        template = self._default if tools is None else self._for_tools
        if continues:
            *earlier, last = messages
            marked = last["content"]
            if isinstance(marked, list):
                *parts, part = marked
                marked = [*parts, {**part, "text": part["text"] + _TO_CONTINUE}]
            else:
                marked += _TO_CONTINUE
            messages = [*earlier, {**last, "content": marked}]
        pieces, size = [], 0
        until = monotonic() + _MOST_SECONDS
        for piece in template.generate({**self._special_tokens, **variables, "messages": messages, "tools": tools}):
            size += len(piece)
            if size > _MOST_CHARACTERS or monotonic() > until:
                raise ValueError(f"the chat template writes more than {_MOST_CHARACTERS} characters, or takes too long")
            pieces.append(piece)
        text = "".join(pieces)
        if not continues:
            return text
        end = text.rindex(_TO_CONTINUE.strip())
        return text[:end] if text.startswith(_TO_CONTINUE, end) else text[:end].rstrip()
