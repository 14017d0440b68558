# SPDX-License-Identifier: Apache-2.0
"""Parser of OpenAI's APIs: chat, completions, embeddings, images, and those of items."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from epp.plugins.parsers.json_parser import DenseReader, JsonParser, Reader, dense_not_run, not_run
from epp.plugins.parsers.openai_dense import (
    read_dense_chat,
    read_dense_completions,
    read_dense_embeddings,
    read_long_images,
)
from epp.plugins.parsers.openai_items import (
    read_conversations,
    read_dense_conversations,
    read_dense_responses,
    read_responses,
)
from epp.plugins.parsers.openai_readers import read_chat, read_completions, read_embeddings, read_images


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
    dense_readers: ClassVar[Mapping[str, DenseReader]] = MappingProxyType(
        {
            "chat/completions": read_dense_chat,
            "chat/completions/render": dense_not_run(read_dense_chat),
            "completions": read_dense_completions,
            "completions/render": dense_not_run(read_dense_completions),
            "conversations": read_dense_conversations,
            "embeddings": read_dense_embeddings,
            "images/generations": read_long_images,
            "responses": read_dense_responses,
        }
    )
