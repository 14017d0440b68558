# SPDX-License-Identifier: Apache-2.0
"""`proto/decision.proto` has the fields of the records that are written, by name and type."""

import types
import typing
from pathlib import Path

import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from grpc_tools import protoc

from epp.explain import record

PROTO = Path(__file__).parents[2] / "proto"
KINDS = {
    str: FieldDescriptor.TYPE_STRING,
    int: FieldDescriptor.TYPE_INT64,
    float: FieldDescriptor.TYPE_DOUBLE,
    bool: FieldDescriptor.TYPE_BOOL,
}
STRUCTS = {
    name: found
    for name, found in vars(record).items()
    if isinstance(found, type) and issubclass(found, msgspec.Struct) and not name.startswith("_")
}


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Descriptor]:
    target = tmp_path_factory.mktemp("proto") / "decision.binpb"
    assert protoc.main(["protoc", f"-I{PROTO}", f"--descriptor_set_out={target}", "decision.proto"]) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    (file,) = files.file
    pool.Add(file)
    return dict(pool.FindFileByName("decision.proto").message_types_by_name)


def test_every_part_of_a_record_is_a_message(messages: dict[str, Descriptor]):
    assert messages.keys() == STRUCTS.keys()


@pytest.mark.parametrize("name", STRUCTS)
def test_message_has_the_fields_of_its_part(messages: dict[str, Descriptor], name: str):
    message, struct = messages[name], STRUCTS[name]
    hints = typing.get_type_hints(struct)
    assert [field.name for field in message.fields] == list(struct.__struct_fields__)
    assert [field.json_name for field in message.fields] == list(struct.__struct_encode_fields__)
    for field in message.fields:
        kind = hints[field.name]
        if typing.get_origin(kind) is tuple:
            assert field.is_repeated
            kind = typing.get_args(kind)[0]
        elif isinstance(kind, types.UnionType):
            assert field.has_presence
            (kind,) = (each for each in typing.get_args(kind) if each is not types.NoneType)
        elif typing.get_origin(kind) is typing.Literal:
            kind = str
        if kind in KINDS:
            assert field.type == KINDS[kind]
        else:
            assert field.message_type.name == kind.__name__
