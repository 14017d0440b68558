"""Reads YAML that others wrote into plain data, and refuses what would end the process."""

import yaml

try:
    from yaml import CSafeLoader as _Fast  # the other takes seconds for 1 MiB
except ImportError:
    from yaml import SafeLoader as _Fast  # type: ignore[assignment]  # where libyaml is missing


class PlainLoader(_Fast):
    """Dates stay as they are written, which is how Kubernetes means them."""


def _as_written(loader: PlainLoader, node: yaml.ScalarNode) -> object:
    return loader.construct_scalar(node)


PlainLoader.add_constructor("tag:yaml.org,2002:timestamp", _as_written)


def refuse_deep_nesting(text: str, limit: int) -> None:
    """Raise ValueError before a loader, which recurses in C, is given what is nested deeper than that."""
    depth = 0
    for event in yaml.parse(text, Loader=_Fast):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > limit:
                line = "" if event.start_mark is None else f"line {event.start_mark.line + 1}: "
                raise ValueError(f"{line}nested more than {limit} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
