# SPDX-License-Identifier: Apache-2.0
"""Writes the plugin reference as Markdown."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from epp.config.plugin_reference import OTHER, ParameterEntry, PluginEntry
from epp.framework.plugin import all_roles

_HEADINGS = {cls.__name__: cls.role.title for cls in all_roles()} | {OTHER: "Others"}


def plugin_markdown(entries: Sequence[PluginEntry]) -> str:
    """Return the whole page; entries are in the order of `plugin_reference`."""
    return "\n".join(_lines(entries)) + "\n"


def _lines(entries: Iterable[PluginEntry]) -> Iterator[str]:
    yield "# Plugins"
    yield ""
    yield "All plugin types and what they take, written by `epp plugins --output markdown` from the code itself."
    for role, members in groupby(entries, key=lambda entry: entry.roles[0]):
        yield ""
        yield f"## {_HEADINGS[role]}"
        for entry in members:
            yield from _plugin(entry)


def _plugin(entry: PluginEntry) -> Iterator[str]:
    yield ""
    yield f"### {entry.type}"
    yield ""
    others = [_HEADINGS[role].lower() for role in entry.roles[1:]]
    notes = [entry.stability.lower()] if entry.stability != "Beta" else []
    notes += [f"also among: {', '.join(others)}"] if others else []
    if notes:
        yield f"*{'; '.join(notes)}*"
        yield ""
    yield entry.text
    if entry.parameters:
        yield ""
        yield "| parameter | type | default | |"
        yield "|---|---|---|---|"
        yield from _rows(entry.parameters, "")


def _rows(parameters: Iterable[ParameterEntry], prefix: str) -> Iterator[str]:
    for parameter in parameters:
        name = prefix + parameter.name
        default = f"`{_cell(parameter.default)}`" if parameter.default else "required"
        yield f"| `{name}` | {_cell(parameter.type)} | {default} | {_cell(parameter.text)} |"
        inner = f"{name}[]." if parameter.type.startswith("list") else f"{name}."
        yield from _rows(parameter.fields, inner)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
