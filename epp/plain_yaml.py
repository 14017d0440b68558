# SPDX-License-Identifier: Apache-2.0
"""Untrusted YAML as plain data, without input that would end the process."""

import yaml

try:
    from yaml import CSafeLoader as _Loader  # the other takes seconds for 1 MiB
except ImportError:
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]  # without libyaml


class PlainLoader(_Loader):
    """Leaves dates as strings, as Kubernetes does."""


def _as_string(loader: PlainLoader, node: yaml.ScalarNode) -> object:
    return loader.construct_scalar(node)


PlainLoader.add_constructor("tag:yaml.org,2002:timestamp", _as_string)


def refuse_deep_nesting(text: str, limit: int) -> None:
    """Raise ValueError for text that is nested deeper than `limit`: the loader recurses in C."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > limit:
                line = "" if event.start_mark is None else f"line {event.start_mark.line + 1}: "
                raise ValueError(f"{line}nested more than {limit} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
