# SPDX-License-Identifier: Apache-2.0
"""Inputs of commands from flags, and their output: tables and findings for terminals, JSON for programs."""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog
import typer
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from epp.cli.picker_flags import PickerFlags, Serve
from epp.config import LoadedConfig, load_file, load_text
from epp.config.load import read_file, sample_texts
from epp.extproc.headers import DECISION_RECORD_GROUP, IgnoredHeaders
from epp.framework import ConfigurationError, SystemClock
from epp.framework.datalayer import Discovery
from epp.framework.endpoint import EndpointTrust
from epp.framework.plugin import Parameters
from epp.framework.suggestions import hint_at
from epp.pool.discovery import PodFileDiscovery, PodTarget, StaticDiscovery, Target, parse_targets
from epp.pool.discovery.pod_files import PodFileParameters
from epp.routing.policies import Policies, policies_in_files
from epp.runtime.addresses import is_ip, parse_host

FLAG = "--objects"
_PIPED_WIDTH = 160


def split_list(text: str) -> tuple[str, ...]:
    """Return the parts of a comma-separated list."""
    return tuple(part for each in text.split(",") if (part := each.strip()))


def read_config(file: Path | None, text: str | None) -> LoadedConfig | None:
    """Return the configuration in the file or the text, None for neither; raises ConfigurationError."""
    if file is not None and text is not None:
        raise ConfigurationError("--config-file and --config-text cannot be combined: give one")
    if file is not None:
        return load_file(file)
    return None if text is None else load_text(text)


def read_named_config(name: str) -> LoadedConfig:
    """Return the configuration in a file, or the ready-made one of that name; raises ConfigurationError."""
    path, samples = Path(name), sample_texts()
    if not path.exists() and name.removesuffix(".yaml") in samples:
        return load_text(samples[name.removesuffix(".yaml")], name)
    if not path.exists() and path.name == name and not path.suffix:
        raise ConfigurationError(f"there is no file or ready-made configuration {name!r}; {hint_at(name, samples)}")
    return load_text(read_file(path), name)


def read_endpoints(lists: Sequence[str] | None) -> Discovery[Parameters] | None:
    """Return the pool of --endpoints, None without it; raises ConfigurationError."""
    return None if lists is None else StaticDiscovery(read_targets(lists))


def read_targets(lists: Sequence[str] | None) -> tuple[Target, ...]:
    """Return the endpoints of --endpoints, none without it; raises ConfigurationError."""
    if lists is None:
        return ()
    try:
        return parse_targets(",".join(lists))
    except ValueError as error:
        raise ConfigurationError(f"--endpoints: {error}") from error


def read_policies(paths: str, pool_name: str | None) -> Policies | None:
    """Return the objects of --objects for a pool, or for any pool; None without the flag. Raises ConfigurationError."""
    given = split_list(paths)
    return policies_in_files(given, SystemClock(), pool_name or "") if given else None


def read_trust(ca_file: Path | None, *, skip_verify: bool) -> EndpointTrust:
    """Return the verification of endpoint certificates; raises ConfigurationError for contradicting flags."""
    if ca_file is not None and skip_verify:
        raise ConfigurationError("--endpoint-ca-file and --endpoint-insecure-skip-verify cannot be combined: give one")
    return EndpointTrust(None if ca_file is None else ca_file.absolute(), verify=not skip_verify)


def read_ignored_headers(names: str, gateways: str) -> IgnoredHeaders | None:
    """Return the headers of --ignore-client-headers, accepted only from --trusted-gateways; raises ConfigurationError.

    Only these gateways may request records of decisions.
    """
    if not names.strip() and not gateways.strip():
        return None
    try:
        ignored = IgnoredHeaders.parse((*split_list(names), DECISION_RECORD_GROUP))
    except ValueError as error:
        raise ConfigurationError(f"--ignore-client-headers: {error}") from error
    try:
        return ignored.except_from(split_list(gateways))
    except ValueError as error:
        raise ConfigurationError(f"--trusted-gateways: {error}") from error


def read_bind_address(text: str, flag: str = "--bind-address") -> str:
    """Return the IP address of a flag; raises ConfigurationError."""
    host = "127.0.0.1" if text == "localhost" else text.removeprefix("[").removesuffix("]")
    if not is_ip(host):
        raise ConfigurationError(f"{flag}: {text!r} is not an IP address: write one of this machine, without a port")
    return parse_host(host)


def is_in_files(flags: PickerFlags, config: LoadedConfig | None) -> bool:
    """Whether the endpoints are the pods in the files of --objects: flags and configuration name no other source."""
    if not split_list(flags.objects) or flags.endpoints is not None:
        return False
    if config is not None and config.model.names_all_endpoints:
        return False
    in_cluster = isinstance(flags, Serve) and (flags.kubeconfig is not None or flags.ha_enable_leader_election)
    return not in_cluster


def read_file_pool(flags: PickerFlags, pods: PodTarget | None = None) -> PodFileDiscovery:
    """Return the pods in the files, only those with the labels of `pods` if given; raises ConfigurationError."""
    namespace = flags.pool_namespace if isinstance(flags, Serve) else None
    try:
        parameters = PodFileParameters(
            paths=split_list(flags.objects),
            pool="" if pods is not None else flags.pool_name or "",
            namespace=namespace or "",
            selector="" if pods is None else str(pods.labels),
            target_ports=() if pods is None else pods.ports,
        )
    except ValueError as error:
        raise ConfigurationError(f"{FLAG}: {error}") from error
    return PodFileDiscovery(parameters, clock=SystemClock(), setting=FLAG)


def new_console() -> Console:
    """Return a console that prints names unchanged; 160 columns wide without a terminal."""
    console = Console(highlight=False, emoji=False)
    if not any(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        console.width = _PIPED_WIDTH
    return console


@contextmanager
def log_of_errors_only() -> Iterator[None]:
    """Log only errors, on stderr: the command reports warnings itself, and stdout must be pure JSON."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def progress_bar(
    title: str, total: Callable[[], float], *, shown: bool = True, console: Console | None = None
) -> Iterator[Callable[[float], None]]:
    """Show the progress towards `total` and the time left, on a terminal and if `shown`.

    Yields a function that sets the progress. `total` is called only on a terminal.
    """
    console = console or Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415  few commands

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    most = total()
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=most)
        yield lambda done: bar.update(task, completed=min(done, most))


def write_text(path: Path, text: str) -> None:
    """Write a file; raises ConfigurationError."""
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error


def plain_table(*headings: str, title: str | None = None) -> Table:
    """Return a table without borders; a column whose heading begins with `>` is for numbers."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=title is not None)
    for heading in headings:
        justify: JustifyMethod = "right" if heading.startswith(">") else "left"
        table.add_column(heading.removeprefix(">"), justify=justify, overflow="fold")
    return table


def print_labelled(console: Console, label: str, text: str) -> None:
    """Print a line of markup; on a terminal, wrapped lines are aligned with the text."""
    if not console.is_terminal:
        console.print(f"{label}{text}", soft_wrap=True)
        return
    grid = Table.grid()
    grid.add_column(no_wrap=True, min_width=Text.from_markup(label).cell_len)
    grid.add_column(overflow="fold")
    grid.add_row(label, text)
    console.print(grid)


def indented(markup: str, columns: int) -> Padding:
    """Return an indented paragraph that wraps between words."""
    return Padding(Text.from_markup(markup), (0, 0, 0, columns), expand=False)


def print_json(value: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def show_findings(
    console: Console,
    title: str,
    errors: Sequence[object],
    warnings: Sequence[object],
    notes: Sequence[object] = (),
    *,
    skipped: str = "",
) -> None:
    """Print the result of a check with its errors and warnings; `skipped` is the reason that it was skipped."""
    words = [f"[red]refused[/], {counted(len(errors), 'error')}" if errors else "[green]ok[/]"]
    words += [counted(len(warnings), "warning")] if warnings else []
    if skipped:
        words = [f"[dim]skipped: {escape(skipped)}[/]"]
    head = f"[bold]{escape(title)}[/]:"
    if console.is_terminal and Text.from_markup(f"{head} {', '.join(words)}").cell_len > console.width:
        console.print(head)
        print_labelled(console, "  ", ", ".join(words))
    else:
        print_labelled(console, "", f"{head} {', '.join(words)}")
    labels = {"[red]error[/]  ": errors, "[yellow]warning[/]": warnings, "[dim]note[/]   ": notes}
    for label, found in labels.items():
        for each in found:
            print_labelled(console, f"  {label} ", escape(str(each)))


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
