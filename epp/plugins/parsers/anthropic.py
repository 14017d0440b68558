# SPDX-License-Identifier: Apache-2.0
"""Parser of Anthropic's messages API and its token count."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from epp.plugins.parsers.anthropic_reader import read_messages
from epp.plugins.parsers.json_parser import JsonParser, Reader, not_run


class AnthropicParser(JsonParser):
    """Parses the messages API: the canonical prompt is the tools, the system prompt and the messages, in that order.

    The prompt of a conversation is a prefix of that of its continuation. A token count runs no model, so its prompt is
    empty.
    """

    plugin_type = "anthropic-parser"
    readers: ClassVar[Mapping[str, Reader]] = MappingProxyType(
        {"messages": read_messages, "messages/count_tokens": not_run(read_messages)}
    )
