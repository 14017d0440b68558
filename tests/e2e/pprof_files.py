# SPDX-License-Identifier: Apache-2.0
"""Reads profiles by the published schema, `perftools.profiles.Profile`, made into messages by protobuf itself."""

import gzip

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_KINDS = descriptor_pb2.FieldDescriptorProto
_INT, _UINT, _BOOL, _TEXT, _MESSAGE = (
    _KINDS.TYPE_INT64,
    _KINDS.TYPE_UINT64,
    _KINDS.TYPE_BOOL,
    _KINDS.TYPE_STRING,
    _KINDS.TYPE_MESSAGE,
)
_SCHEMA = {
    "ValueType": {"type": (1, _INT), "unit": (2, _INT)},
    "Label": {"key": (1, _INT), "str": (2, _INT), "num": (3, _INT), "num_unit": (4, _INT)},
    "Sample": {"location_id": (1, _UINT, "*"), "value": (2, _INT, "*"), "label": (3, "Label", "*")},
    "Line": {"function_id": (1, _UINT), "line": (2, _INT)},
    "Location": {
        "id": (1, _UINT),
        "mapping_id": (2, _UINT),
        "address": (3, _UINT),
        "line": (4, "Line", "*"),
        "is_folded": (5, _BOOL),
    },
    "Function": {
        "id": (1, _UINT),
        "name": (2, _INT),
        "system_name": (3, _INT),
        "filename": (4, _INT),
        "start_line": (5, _INT),
    },
    "Profile": {
        "sample_type": (1, "ValueType", "*"),
        "sample": (2, "Sample", "*"),
        "location": (4, "Location", "*"),
        "function": (5, "Function", "*"),
        "string_table": (6, _TEXT, "*"),
        "time_nanos": (9, _INT),
        "duration_nanos": (10, _INT),
        "period_type": (11, "ValueType"),
        "period": (12, _INT),
        "default_sample_type": (14, _INT),
    },
}


def _profile_class() -> type:
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="perftools.profiles", syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, *many) in fields.items():
            label = _KINDS.LABEL_REPEATED if many else _KINDS.LABEL_OPTIONAL
            if isinstance(kind, str):
                type_name = f".perftools.profiles.{kind}"
                message.field.add(name=field, number=number, type=_MESSAGE, type_name=type_name, label=label)
            else:
                message.field.add(name=field, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.profiles.Profile"))


Profile = _profile_class()


def functions_in(file: bytes) -> tuple[list[tuple[str, str]], set[str]]:
    """Return the kinds of numbers in a profile, and the functions of its samples; fails for one that is not sound."""
    profile = Profile.FromString(gzip.decompress(file))
    text = profile.string_table
    assert text[0] == ""
    names = {function.id: text[function.name] for function in profile.function}
    functions = {place.id: names[line.function_id] for place in profile.location for line in place.line}
    found = set()
    for sample in profile.sample:
        assert len(sample.value) == len(profile.sample_type)
        assert all(value > 0 for value in sample.value)
        found |= {functions[place] for place in sample.location_id}
    return [(text[kind.type], text[kind.unit]) for kind in profile.sample_type], found
