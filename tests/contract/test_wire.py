# SPDX-License-Identifier: Apache-2.0
"""Our trimmed messages and the full definitions of the protocol say the same bytes."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import envoy
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from epp.extproc import wire

PROTOCOL = Path(sys.prefix) / "protocol"
"""Where `make` installs the full definitions: behind all others, as they have files of other packages too."""
sys.path.append(str(PROTOCOL))
envoy.__path__.append(str(PROTOCOL / "envoy"))  # the package of the Envoy binary has the same name
full = importlib.import_module("envoy.service.ext_proc.v3.external_processor_pb2")
sys.path.remove(str(PROTOCOL))  # its `opentelemetry` would hide the installed one from modules that are imported later
PAIRS = [(wire.ProcessingRequest, full.ProcessingRequest), (wire.ProcessingResponse, full.ProcessingResponse)]


def paired(ours: Descriptor, theirs: Descriptor, seen: set[str]) -> Iterator[tuple[FieldDescriptor, FieldDescriptor]]:
    """Every field of ours with theirs of the same number, through all nested messages."""
    if ours.full_name in seen:
        return
    seen.add(ours.full_name)
    for field in ours.fields:
        other = theirs.fields_by_number.get(field.number)
        assert other is not None, f"{ours.full_name} has a field {field.number} ({field.name}) that is not theirs"
        yield field, other
        if field.message_type is not None:
            yield from paired(field.message_type, other.message_type, seen)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=["request", "response"])
def test_every_field_has_the_name_number_and_type_of_the_full_definition(ours, theirs):
    checked = 0
    for field, other in paired(ours.DESCRIPTOR, theirs.DESCRIPTOR, set()):
        assert field.name == other.name
        assert field.is_repeated == other.is_repeated
        assert (field.containing_oneof is None) == (other.containing_oneof is None), field.full_name
        same_varint = {field.type, other.type} <= {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_ENUM}
        assert field.type == other.type or same_varint, field.full_name
        if field.enum_type is not None:
            numbers = {value.number: value.name for value in other.enum_type.values}
            assert all(numbers.get(value.number) == value.name for value in field.enum_type.values)
        checked += 1
    assert checked > 15


def test_request_of_a_full_gateway_is_read():
    sent = full.ProcessingRequest()
    sent.request_headers.headers.headers.add(key=":path", raw_value=b"/v1/completions")
    sent.request_headers.headers.headers.add(key="x", value="y")
    sent.request_headers.end_of_stream = True
    sent.metadata_context.filter_metadata["envoy.lb.subset_hint"].update({"k": ["10.0.0.1:8000"]})
    sent.attributes["envoy.filters.http.ext_proc"].update({"ignored": 1})  # a field we do not have
    sent.protocol_config.request_body_mode = 4
    read = wire.ProcessingRequest.FromString(sent.SerializeToString())
    assert read.WhichOneof("request") == "request_headers"
    assert [(h.key, h.raw_value or h.value.encode()) for h in read.request_headers.headers.headers] == [
        (":path", b"/v1/completions"),
        ("x", b"y"),
    ]
    assert read.request_headers.end_of_stream
    assert read.protocol_config.request_body_mode == wire.FULL_DUPLEX_STREAMED
    hint = read.metadata_context.filter_metadata["envoy.lb.subset_hint"].fields["k"].list_value.values
    assert [value.string_value for value in hint] == ["10.0.0.1:8000"]


def test_answers_are_read_by_a_full_gateway():
    reply = wire.ProcessingResponse(
        immediate_response=wire.ImmediateResponse(status=wire.HttpStatus(code=503), body=b"no", details="why")
    )
    read = full.ProcessingResponse.FromString(reply.SerializeToString())
    assert (read.immediate_response.status.code, read.immediate_response.body) == (503, b"no")
    piece = wire.StreamedBodyResponse(body=b"abc", end_of_stream=True)
    body = wire.BodyResponse(response=wire.CommonResponse(body_mutation=wire.BodyMutation(streamed_response=piece)))
    read = full.ProcessingResponse.FromString(wire.ProcessingResponse(response_body=body).SerializeToString())
    streamed = read.response_body.response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (b"abc", True)
