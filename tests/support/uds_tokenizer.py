# SPDX-License-Identifier: Apache-2.0
"""The tokenizer service of llm-d-kv-cache 0.9 on a Unix socket, with messages made from the numbers of its fields."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import grpc

from tests.support.vllm_grpc import messages_of

M = messages_of(
    "tokenization",
    {
        "Start": [("model_name", 1, "s"), ("enable_thinking", 2, "b"), ("add_generation_prompt", 3, "b")],
        "Started": [("success", 1, "b"), ("error_message", 2, "s")],
        "ImageUrl": [("url", 1, "s")],
        "Part": [("type", 1, "s"), ("text", 2, "s"), ("image_url", 3, "ImageUrl")],
        "Message": [("role", 1, "s"), ("content", 2, "s"), ("content_parts", 3, "Part*"), ("tool_calls_json", 4, "s")],
        "Chat": [
            ("model_name", 1, "s"),
            ("messages", 2, "Message*"),
            ("tools_json", 3, "s"),
            ("chat_template", 4, "s"),
            ("add_generation_prompt", 5, "b"),
            ("continue_final_message", 6, "b"),
            ("chat_template_kwargs", 7, "s"),
        ],
        "Completion": [("model_name", 1, "s"), ("prompt", 2, "s")],
        "Range": [("offset", 1, "u"), ("length", 2, "u")],
        "Ranges": [("ranges", 1, "Range*")],
        "Strings": [("values", 1, "s*")],
        "HashEntry": [("key", 1, "s"), ("value", 2, "Strings")],
        "RangeEntry": [("key", 1, "s"), ("value", 2, "Ranges")],
        "Features": [("mm_hashes", 1, "HashEntry*"), ("mm_placeholders", 2, "RangeEntry*")],
        "ChatTokens": [("token_ids", 2, "u*"), ("features", 3, "Features"), ("success", 4, "b")],
        "CompletionTokens": [("token_ids", 2, "u*"), ("success", 3, "b")],
    },
)
"""Message classes by name; entries of maps are messages on the wire."""


class Tokenizer:
    """Renders each text as one token for each byte; keeps what it was asked. It can hang, fail, or answer anything."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.asked: list[Any] = []
        self.loaded: list[str] = []
        self.load_error = ""
        self.status: grpc.StatusCode | None = None
        self.answer: Callable[[Any], Any] | None = None
        self.hangs = False
        self.released = asyncio.Event()
        """Ends the calls that hang."""
        self.port = 0
        """It listens there too."""
        self._server: grpc.aio.Server | None = None

    async def load(self, request: Any, context: Any) -> Any:
        self.loaded.append(request.model_name)
        return M["Started"](success=not self.load_error, error_message=self.load_error)

    async def render(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        if self.hangs:
            await self.released.wait()
        if self.status is not None:
            await context.abort(self.status, "a secret prompt")
        if self.answer is not None:
            return self.answer(request)
        if request.DESCRIPTOR.name == "Completion":
            return M["CompletionTokens"](token_ids=request.prompt.encode(), success=True)
        return M["ChatTokens"](token_ids="".join(each.content for each in request.messages).encode(), success=True)

    async def start(self) -> None:
        def method(call: Any, request: str) -> Any:
            return grpc.unary_unary_rpc_method_handler(call, M[request].FromString, _bytes)

        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", 100 * 1024 * 1024)])
        methods = {
            "InitializeTokenizer": method(self.load, "Start"),
            "RenderChatCompletion": method(self.render, "Chat"),
            "RenderCompletion": method(self.render, "Completion"),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("tokenization.TokenizationService", methods),)
        )
        self._server.add_insecure_port(f"unix:{quote(self.path)}")
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()

    async def stop(self) -> None:
        self.released.set()
        if self._server is not None:
            await self._server.stop(None)


def _bytes(answer: Any) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


@asynccontextmanager
async def uds_tokenizer(path: str) -> AsyncIterator[Tokenizer]:
    """Run the service."""
    server = Tokenizer(path)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
