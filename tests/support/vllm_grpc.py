# SPDX-License-Identifier: Apache-2.0
"""A model server and a client that speak vLLM's gRPC API, with messages made from the numbers of its fields."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
from google.api.httpbody_pb2 import HttpBody
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from epp.framework.protobuf import varint

SERVICE = "vllm.grpc.engine.VllmEngine"
VERTEX = "google.cloud.aiplatform.v1beta1.PredictionService"
_TYPES = {
    "u": descriptor_pb2.FieldDescriptorProto.TYPE_UINT32,
    "b": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "s": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
}
_MESSAGES = {
    "Tokenized": [("input_ids", 2, "u*")],
    "Sampling": [("max_tokens", 8, "u")],
    "Span": [("offset", 1, "u"), ("length", 2, "u")],
    "Media": [("mm_placeholders", 5, "Span*"), ("mm_hashes", 6, "s*")],
    "GenerateRequest": [
        ("tokenized", 2, "Tokenized"),
        ("text", 3, "s"),
        ("sampling_params", 4, "Sampling"),
        ("stream", 5, "b"),
        ("mm_inputs", 7, "Media"),
    ],
    "EmbedRequest": [("tokenized", 2, "Tokenized")],
    "Chunk": [
        ("token_ids", 1, "u*"),
        ("prompt_tokens", 2, "u"),
        ("completion_tokens", 3, "u"),
        ("cached_tokens", 4, "u"),
    ],
    "Complete": [("prompt_tokens", 3, "u"), ("completion_tokens", 4, "u"), ("cached_tokens", 5, "u")],
    "GenerateResponse": [("chunk", 1, "Chunk"), ("complete", 2, "Complete")],
    "EmbedResponse": [("embedding", 1, "u*"), ("prompt_tokens", 2, "u")],
}


def messages_of(package: str, kinds: Mapping[str, Sequence[tuple[str, int, str]]]) -> dict[str, type]:
    """Return message classes by name."""
    file = descriptor_pb2.FileDescriptorProto(name="messages.proto", package=package, syntax="proto3")
    for name, fields in kinds.items():
        message = file.message_type.add(name=name)
        for label, number, kind in fields:
            one = message.field.add(name=label, number=number, label=3 if kind.endswith("*") else 1)
            one.type = _TYPES.get(kind.rstrip("*"), descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE)
            if one.type == descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE:
                one.type_name = f".{package}.{kind.rstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in kinds}


M = messages_of("vllm.grpc.engine", _MESSAGES)
"""Message classes by name."""


def framed(message, flag: int = 0) -> bytes:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return bytes([flag]) + len(data).to_bytes(4) + data


def generate(ids: Sequence[int] = (), **more):
    return M["GenerateRequest"](**({"tokenized": {"input_ids": ids}} if ids else {}), **more)


@dataclass
class Engine:
    """Answers with a chunk for each token asked for, then the totals; a token 13 ends the call with UNAVAILABLE."""

    name: str
    address: str = ""
    asked: list = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)

    async def generate(self, request, context) -> AsyncIterator:
        self.asked.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        ids = request.tokenized.input_ids
        if 13 in ids:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no room")
        if request.stream:
            for number in range(request.sampling_params.max_tokens):
                yield M["GenerateResponse"](chunk={"token_ids": [number], "prompt_tokens": len(ids)})
        totals = {
            "prompt_tokens": len(ids),
            "completion_tokens": request.sampling_params.max_tokens,
            "cached_tokens": 4,
        }
        yield M["GenerateResponse"](complete=totals)

    async def embed(self, request, context):
        self.asked.append(request)
        return M["EmbedResponse"](embedding=[1] * 5000, prompt_tokens=len(request.tokenized.input_ids))

    async def health(self, request, context):
        return b""

    async def vertex_chat(self, request, context) -> AsyncIterator[HttpBody]:
        """Answers as an event stream of OpenAI's API in two messages, the second with the counts."""
        self.asked.append(request)
        yield HttpBody(data=b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
        yield HttpBody(data=b'data: {"usage":{"prompt_tokens":11,"completion_tokens":2}}\n\ndata: [DONE]\n\n')


@asynccontextmanager
async def engine(name: str) -> AsyncIterator[Engine]:
    served, server = Engine(name), grpc.aio.server()
    methods = {
        "Generate": grpc.unary_stream_rpc_method_handler(
            served.generate, M["GenerateRequest"].FromString, M["GenerateResponse"].SerializeToString
        ),
        "Embed": grpc.unary_unary_rpc_method_handler(
            served.embed, M["EmbedRequest"].FromString, M["EmbedResponse"].SerializeToString
        ),
        "HealthCheck": grpc.unary_unary_rpc_method_handler(served.health),
    }
    vertex = {
        "ChatCompletions": grpc.unary_stream_rpc_method_handler(
            served.vertex_chat, response_serializer=HttpBody.SerializeToString
        )
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, methods), grpc.method_handlers_generic_handler(VERTEX, vertex))
    )
    served.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield served
    finally:
        await server.stop(None)


@dataclass
class Client:
    channel: grpc.aio.Channel

    async def generate(self, request, **more) -> list:
        call = self.channel.unary_stream(
            f"/{SERVICE}/Generate", M["GenerateRequest"].SerializeToString, M["GenerateResponse"].FromString
        )
        return [each async for each in call(request, timeout=20, **more)]

    async def embed(self, ids: Sequence[int]):
        call = self.channel.unary_unary(
            f"/{SERVICE}/Embed", M["EmbedRequest"].SerializeToString, M["EmbedResponse"].FromString
        )
        return await call(M["EmbedRequest"](tokenized={"input_ids": ids}), timeout=20)

    async def vertex_chat(self, **body) -> list[bytes]:
        inner = HttpBody(content_type="application/json", data=json.dumps(body).encode()).SerializeToString()
        call = self.channel.unary_stream(f"/{VERTEX}/ChatCompletions", response_deserializer=HttpBody.FromString)
        return [each.data async for each in call(b"\x12" + varint(len(inner)) + inner, timeout=20)]

    async def health(self) -> bytes:
        return await self.channel.unary_unary(f"/{SERVICE}/HealthCheck")(b"", timeout=20)
