# SPDX-License-Identifier: Apache-2.0
"""A receiver of OpenTelemetry's protocol over gRPC, as a collector has one, that keeps the spans."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

ERROR = "STATUS_CODE_ERROR"


@dataclass
class Received:
    """A span as it came, with the attributes of its resource."""

    span: Span
    resource: dict[str, object]
    scope: str

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def attributes(self) -> dict[str, object]:
        return _plain(self.span.attributes)

    @property
    def trace_id(self) -> str:
        return self.span.trace_id.hex()

    @property
    def status(self) -> str:
        return MessageToDict(self.span.status).get("code", "")

    def is_within(self, other: "Received") -> bool:
        """Whether its time is a part of the other's."""
        began, ended = other.span.start_time_unix_nano, other.span.end_time_unix_nano
        return began <= self.span.start_time_unix_nano <= self.span.end_time_unix_nano <= ended


@dataclass
class Collector(TraceServiceServicer):
    address: str = ""
    spans: list[Received] = field(default_factory=list)

    async def Export(self, request: ExportTraceServiceRequest, context: object) -> ExportTraceServiceResponse:  # noqa: N802  gRPC's name
        for of_resource in request.resource_spans:
            resource = _plain(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                self.spans += [Received(span, resource, of_scope.scope.name) for span in of_scope.spans]
        return ExportTraceServiceResponse()

    def of(self, trace_id: str) -> list[Received]:
        return [each for each in self.spans if each.trace_id == trace_id]

    def tree(self, trace_id: str) -> dict[str, object]:
        """The spans of a trace by name, those below each in it; what came first is first."""
        spans = sorted(self.of(trace_id), key=lambda each: each.span.start_time_unix_nano)
        known = {each.span.span_id for each in spans}

        def below(parent: bytes | None) -> dict[str, object]:
            found = [
                each
                for each in spans
                if (each.span.parent_span_id == parent if parent else each.span.parent_span_id not in known)
            ]
            return {each.name: below(each.span.span_id) for each in found}

        return below(None)


@asynccontextmanager
async def collector(port: int = 0) -> AsyncIterator[Collector]:
    """Receive on this port of this machine, or a free one."""
    server, kept = grpc.aio.server(), Collector()
    add_TraceServiceServicer_to_server(kept, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    kept.address = f"http://127.0.0.1:{port}"
    await server.start()
    try:
        yield kept
    finally:
        await server.stop(None)


def _plain(attributes: Sequence[KeyValue]) -> dict[str, object]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
