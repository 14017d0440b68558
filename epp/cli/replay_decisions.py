# SPDX-License-Identifier: Apache-2.0
"""`epp replay --decisions`: repeat recorded decisions with another configuration and report the differences."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from epp.cli.check_files import STDIN
from epp.cli.commands import Replay
from epp.cli.explain import lines_of
from epp.cli.input_output import log_of_errors_only, new_console, plain_table, print_json, read_named_config, split_list
from epp.cli.options import Output
from epp.cli.running import exit_on
from epp.config import Builder, assemble
from epp.explain.comparison import Comparison, Side, compare
from epp.explain.record import VERSION, DecisionRecord
from epp.framework import ConfigurationError, SystemClock
from epp.framework.messages import printable
from epp.framework.registry import Registry

_CONFIGS = 2
_MOST_DECISIONS = 10_000
_MOST_NAME = 60
_MOST_CLASSES = 20


class _Response(msgspec.Struct):
    decisions: list[DecisionRecord]


def replay_decisions(flags: Replay) -> None:
    with exit_on(ConfigurationError), log_of_errors_only():
        if len(flags.config) != _CONFIGS:
            problem = f"--decisions compares two configurations, not {len(flags.config)}"
            remedy = "give --config twice: first the one under which they were recorded"
            raise ConfigurationError(problem, remedy=remedy)
        records, unread = _read(flags.trace, flags.limit or _MOST_DECISIONS)
        registry = Registry(modules=split_list(flags.allow_plugin_modules))
        builder = Builder(registry, SystemClock(), experimental=flags.allow_experimental_plugins)
        one, other = (assemble(read_named_config(name), builder) for name in flags.config)
        found = compare(records, one, other)
        if flags.output is Output.JSON:
            print_json({**msgspec.to_builtins(found), "unreadLines": unread})
        else:
            _show(new_console(), found, flags.config, unread)


def _read(path: Path, most: int) -> tuple[list[DecisionRecord], int]:
    """Return the last records of a file, and the number of other lines; raises ConfigurationError."""
    try:
        if str(path) == STDIN:
            found, unread = _last(lines_of(sys.stdin.buffer, "standard input"), most)
        else:
            with path.open("rb") as file:
                found, unread = _last(lines_of(file, str(path)), most)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    if not found:
        lines = f", but {unread} other lines" if unread else ""
        remedy = "name a file that --decision-file wrote, or a response of /api/decisions"
        raise ConfigurationError(f"{path} has no decisions{lines}", remedy=remedy)
    return found, unread


def _last(lines: Iterable[bytes], most: int) -> tuple[list[DecisionRecord], int]:
    found, unread = deque[DecisionRecord](maxlen=most), 0
    for line in filter(bytes.strip, lines):
        records = _decoded(line)
        found.extend(record for record in records if record.version <= VERSION)
        unread += sum(record.version > VERSION for record in records) or not records
    return list(found), unread


def _decoded(line: bytes) -> list[DecisionRecord]:
    try:
        return [msgspec.json.decode(line, type=DecisionRecord)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return msgspec.json.decode(line, type=_Response).decisions
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def _show(console: Console, found: Comparison, configs: Sequence[str], unread: int) -> None:
    before, after = map(_plain, configs)
    share = found.differing / found.replayed if found.replayed else 0.0
    differing = (f"{found.differing} of {found.replayed} picks differ", "bold")
    console.print(Text.assemble(differing, f" ({share:.1%}): {after} instead of {before}"))
    for line in _remarks(found, unread):
        console.print(Text(f"  {line}", style="dim"))
    console.print()
    console.print(_sides(found, (before, after)))
    if found.moves:
        table = plain_table("from", "to", ">requests")
        for move in found.moves:
            table.add_row(_plain(move.before), _plain(move.after), str(move.count))
        console.print()
        console.print(table)
    for name, lacks in found.asked_anew.items():
        missing = f"; no record has {', '.join(map(_plain, lacks))}" if lacks else ""
        console.print(Text(f"{_plain(name)} is called again, with the load and hardware of the record{missing}"))


def _remarks(found: Comparison, unread: int) -> Iterator[str]:
    yield f"the first configuration reproduces {found.reproduced} of {found.replayed} recorded picks"
    for reason, count in found.skipped.items():
        yield f"{count} left out: {reason}"
    if found.cut:
        yield f"{found.cut} records list only some of the endpoints: both configurations choose among these"
    if unread:
        yield f"{unread} lines are not records that this version can read"


def _sides(found: Comparison, names: Sequence[str]) -> Table:
    table = plain_table("", *(f">{name}" for name in names))
    sides = (found.config, found.against)

    row = table.add_row
    row("routed", *(str(side.routed) for side in sides))
    for error in dict.fromkeys((*found.config.refused, *found.against.refused)):
        row(f"refused: {_plain(error)}", *(str(side.refused.get(error, 0)) for side in sides))
    for name in list(dict.fromkeys((*found.config.classes, *found.against.classes)))[:_MOST_CLASSES]:
        row(f"on {_plain(name)}", *(_with_share(side.classes, name, side.routed) for side in sides))
    row("dollars an hour, mean", *(_number(side.cost_per_hour, "{:.3f}") for side in sides))
    row("in flight there, mean", *(_number(side.in_flight, "{:.2f}") for side in sides))
    row("waiting there, mean", *(_number(side.waiting, "{:.2f}") for side in sides))
    row("running there, mean", *(_number(side.running, "{:.2f}") for side in sides))
    row("KV cache in use, mean", *(_number(side.kv_usage, "{:.1%}") for side in sides))
    row("load not in the record", *(str(side.load_unknown) for side in sides))
    row("busiest endpoint", *(_busiest(side) for side in sides))
    return table


def _with_share(counts: Mapping[str, int], name: str, total: int) -> str:
    count = counts.get(name, 0)
    return f"{count} ({count / total:.0%})" if total else str(count)


def _busiest(side: Side) -> str:
    return f"{_plain(side.busiest)} ({side.busiest_share:.0%})" if side.busiest else "-"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _plain(text: str) -> str:
    return printable(text, _MOST_NAME)
