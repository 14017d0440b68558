# SPDX-License-Identifier: Apache-2.0
"""Parser of OpenAI's APIs: chat, completions, embeddings, images, and those of items."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from epp.plugins.parsers.json_parser import JsonParser, Reader, not_run
from epp.plugins.parsers.openai_items import read_conversations, read_responses
from epp.plugins.parsers.openai_readers import (
    input_of_embeddings,
    prompt_of_completions,
    read_chat,
    read_completions,
    read_embeddings,
    read_images,
)


class OpenAIParser(JsonParser):
    """Parses the OpenAI APIs: the canonical prompt of a chat is its tools, then its messages.

    The prompt of a conversation is a prefix of that of its continuation. The render APIs run no model, so their prompt
    is empty.
    """

    plugin_type = "openai-parser"
    readers: ClassVar[Mapping[str, Reader]] = MappingProxyType(
        {
            "chat/completions": read_chat,
            "chat/completions/render": not_run(read_chat),
            "completions": read_completions,
            "completions/render": not_run(read_completions),
            "conversations": read_conversations,
            "embeddings": read_embeddings,
            "images/generations": read_images,
            "responses": read_responses,
        }
    )
    token_ids = MappingProxyType(
        {
            "completions": prompt_of_completions,
            "completions/render": prompt_of_completions,
            "embeddings": input_of_embeddings,
        }
    )
