# SPDX-License-Identifier: Apache-2.0
"""`epp trace`: shows the content of a trace of requests, and makes traces."""

import gzip
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epp.cli.commands import TraceMake, TraceShow
from epp.cli.input_output import log_of_errors_only, new_console, print_json, print_labelled, progress_bar
from epp.cli.options import Output
from epp.cli.running import exit_on
from epp.framework.messages import printable
from epp.lab.traces.formats import own_lines
from epp.lab.traces.making import WORKLOADS, MadeTrace
from epp.lab.traces.reading import open_trace
from epp.lab.traces.statistics import RECENT_TOKENS, WINDOW_SECONDS, Named, Statistics, statistics_of
from epp.lab.traces.trace import TraceError, zstd

_SECONDS_OF_MINUTE, _SECONDS_OF_HOUR = 60, 3600
_MANY = 100.0
_LARGE_BYTES = 10_000_000
"""A file of this size takes seconds to read."""
_MOST_NAME = 24


def trace_show(flags: TraceShow) -> None:
    with exit_on(TraceError), log_of_errors_only():
        trace = open_trace(flags.trace, format=flags.format or "", rate=flags.rate, seed=flags.seed)
        size = flags.trace.stat().st_size
        with progress_bar("reading", lambda: size, shown=size >= _LARGE_BYTES) as report:
            found = statistics_of(trace, lambda: report(trace.bytes_read))
        if found is None:
            skipped = "; ".join(f"{count} {reason}" for reason, count in trace.problems.skipped.items())
            raise TraceError(f"{trace.name} has no requests{f': {skipped}' if skipped else ''}")
        if flags.output is Output.JSON:
            print_json(found)
        else:
            _show(new_console(), found)


def trace_make(flags: TraceMake) -> None:
    with exit_on(TraceError):
        trace = MadeTrace(WORKLOADS[flags.like], flags.rate, flags.duration, flags.seed, name=flags.like)
        lines = own_lines(trace, trace.block_tokens)
        if flags.output is None:
            _write(sys.stdout.buffer, lines)
            return
        try:
            with _created(flags.output) as file:
                _write(file, lines)
        except OSError as error:
            raise TraceError(f"--output: {flags.output} cannot be written: {error.strerror}") from error


def _write(file: BinaryIO, lines: Iterable[bytes]) -> None:
    file.writelines(lines)
    file.flush()


@contextmanager
def _created(path: Path) -> Iterator[BinaryIO]:
    """Open a file under a temporary name; rename it on success, and remove it otherwise."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as plain:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", compresslevel=6, fileobj=plain, mtime=0) as packed:
                    yield cast("BinaryIO", packed)
            elif path.suffix == ".zst":
                with zstd().ZstdFile(plain, "w") as packed:
                    yield cast("BinaryIO", packed)
            else:
                yield plain
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _show(console: Console, found: Statistics) -> None:
    form = f" [dim]({found.format})[/]" if found.format else ""
    requests = f"{found.requests:,} request{'' if found.requests == 1 else 's'}"
    console.print(f"[bold]{escape(found.name)}[/]: {requests} in {_duration(found.seconds)}{form}", soft_wrap=True)
    if found.broken:
        lines = f"{found.broken:,} of {found.lines:,} lines are broken"
        print_labelled(console, "  [yellow]warning[/] ", escape(f"{lines}: {found.broken_lines[0]}"))
    for reason, count in found.skipped.items():
        print_labelled(console, "  [dim]note[/]    ", f"{count:,} left out: {escape(reason)}")
    console.print()
    rate = f"{found.rate:,.1f}" if found.rate >= _MANY else f"{found.rate:.3g}"
    print_labelled(console, "[cyan]rate[/]       ", f"{rate} a second, at most {found.peak:,} in a second")
    print_labelled(console, "[cyan]bursts[/]     ", _bursts(found))
    print_labelled(console, "[cyan]prefixes[/]   ", _prefixes(found))
    print_labelled(console, "[cyan]sessions[/]   ", "none" if not found.sessions else f"{found.sessions:,}")
    for label, named in (("models", found.models), ("tenants", found.tenants), ("objectives", found.objectives)):
        print_labelled(console, f"[cyan]{label:<11}[/]", escape(_names(named, found.requests)))
    console.print()
    console.print(_lengths(found))


def _bursts(found: Statistics) -> str:
    if found.gap_variation is None:
        return "-"
    gaps = f"variation of gaps {found.gap_variation:.2f}"
    if found.dispersion is None:
        return f"{gaps} (Poisson: 1)"
    return f"{gaps}, dispersion in {WINDOW_SECONDS:.0f} s {found.dispersion:.2f} (Poisson: 1 and 1)"


def _prefixes(found: Statistics) -> str:
    prefixes = found.prefixes
    if prefixes is None:
        return "unknown: the trace has no blocks"
    about = "about " if prefixes.estimated else ""
    return (
        f"{about}{prefixes.shared:.1%} of the prompt tokens were in an earlier prompt, {prefixes.shared_recently:.1%} "
        f"in the last {RECENT_TOKENS // 1_000_000} million tokens; {about}{prefixes.blocks:,} blocks of "
        f"{prefixes.block_tokens} tokens"
    )


def _names(named: Named, requests: int) -> str:
    if not named.names:
        return "none"
    listed = [f"{printable(name, _MOST_NAME)} {count / requests:.0%}" for name, count in named.requests.items()]
    more = named.names - len(listed)
    return ", ".join(listed) + (f" and {more:,} more" if more else "")


def _lengths(found: Statistics) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", style="cyan")
    for name in ("mean", "p50", "p90", "p99", "max"):
        table.add_column(name, justify="right", min_width=9)

    rows = {"prompt tokens": found.prompt, "output tokens": found.output, "turns of a session": found.turns}
    for label, lengths in rows.items():
        if lengths is not None:
            quantiles = (lengths.p50, lengths.p90, lengths.p99, lengths.max)
            table.add_row(label, f"{lengths.mean:,.1f}", *(f"{number:,}" for number in quantiles))
    return table


def _duration(seconds: float) -> str:
    if seconds < _SECONDS_OF_MINUTE:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), _SECONDS_OF_MINUTE)
    if seconds < _SECONDS_OF_HOUR:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, _SECONDS_OF_MINUTE)
    return f"{hours:,} h {minutes} min"
