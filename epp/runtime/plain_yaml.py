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


_MOST_ALIASED = 1_000_000
"""Values that the aliases of a text may stand for, all together."""


def refuse_unsafe(text: str, depth_limit: int, *, keys_may_repeat: bool = False) -> None:
    """Raise ValueError for text that cannot be loaded safely, or that would lose a part silently.

    Refused are nesting deeper than the limit, because the loader recurses in C; aliases that expand to millions of
    values; and duplicate keys of one mapping, unless keys may repeat.
    """
    scan = _Scan(depth_limit, keys_may_repeat=keys_may_repeat)
    for event in yaml.parse(text, Loader=_Loader):
        try:
            scan.take(event)
        except ValueError as error:
            line = "" if event.start_mark is None else f"line {event.start_mark.line + 1}: "
            raise ValueError(f"{line}{error}") from None


class _Open:
    """A mapping or list whose end has not been read yet."""

    __slots__ = ("anchor", "at_key", "keys", "parts")

    def __init__(self, anchor: str | None, *, is_mapping: bool) -> None:
        self.anchor = anchor
        self.keys: set[tuple[str, tuple[bool, bool]]] | None = set() if is_mapping else None
        self.at_key = is_mapping
        self.parts = 1


class _Scan:
    """Reads the events of a text."""

    def __init__(self, depth_limit: int, *, keys_may_repeat: bool) -> None:
        self._depth_limit = depth_limit
        self._keys_may_repeat = keys_may_repeat
        self._open: list[_Open] = []
        self._parts_of: dict[str | None, int] = {}
        """Values that an anchor stands for."""
        self._aliased = 0

    def take(self, event: yaml.Event) -> None:
        """Read the next event; raises ValueError."""
        if isinstance(event, yaml.ScalarEvent):
            if self._open:
                self._scalar(event, self._open[-1])
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open.append(_Open(event.anchor, is_mapping=isinstance(event, yaml.MappingStartEvent)))
            if len(self._open) > self._depth_limit:
                raise ValueError(f"nested more than {self._depth_limit} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = self._open.pop()
            if closed.anchor is not None:
                self._parts_of[closed.anchor] = closed.parts
            self._add(closed.parts)
        elif isinstance(event, yaml.AliasEvent):
            parts = self._parts_of.get(event.anchor, 1)
            self._aliased += parts
            if self._aliased > _MOST_ALIASED:
                raise ValueError(f"its aliases stand for more than {_MOST_ALIASED} values: write less")
            self._add(parts)

    def _scalar(self, event: yaml.ScalarEvent, within: _Open) -> None:
        if within.at_key and within.keys is not None and not self._keys_may_repeat:
            key = event.value, event.implicit
            if key in within.keys and event.value != "<<":
                raise ValueError(f"key {event.value!r:.60} stands twice: remove one of them")
            within.keys.add(key)
        self._add(1)

    def _add(self, parts: int) -> None:
        """Count a value in the collection around it, which then has another key, or the value of one."""
        if self._open:
            within = self._open[-1]
            within.parts += parts
            within.at_key = within.keys is not None and not within.at_key
