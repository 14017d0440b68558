# SPDX-License-Identifier: Apache-2.0
"""`epp replay`: replays a trace with configurations on simulated servers, or only its decisions."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from epp.cli.commands import Replay
from epp.cli.input_output import (
    log_of_errors_only,
    new_console,
    plain_table,
    print_json,
    progress_bar,
    read_named_config,
    split_list,
    write_text,
)
from epp.cli.options import Output
from epp.cli.replay_decisions import replay_decisions
from epp.cli.running import exit_on
from epp.config import LoadedConfig
from epp.framework import ConfigurationError
from epp.framework.messages import printable
from epp.lab.replay.comparison import Comparison, compare, replay_report
from epp.lab.replay.fleet import Fleet, ReplayOptions, load_fleet
from epp.lab.replay.jobs import Job, TraceFile, run_jobs
from epp.lab.replay.outcome import Outcome, merge
from epp.lab.replay.replicas import check_config
from epp.lab.replay.summary import Groups, Quantiles, Summary, groups, parse_targets
from epp.lab.traces.trace import TraceError

_MOST_REPEATED = 20_000
"""Number of requests up to which a replay is repeated by default."""
_SEEDS = 5
_MOST_NAME = 40
_UNKNOWN = "-"


class ReplayReport(msgspec.Struct, frozen=True):
    config: str
    seeds: int
    figures: Groups
    comparison: Comparison
    """Intervals, and differences to the first configuration."""
    adapter_loads: int
    preemptions: int
    warnings: list[str]


def replay(flags: Replay) -> None:
    if flags.decisions:
        replay_decisions(flags)
        return
    with exit_on(ConfigurationError, TraceError), log_of_errors_only():
        if flags.endpoints is None:
            remedy = "give the list of servers, or --decisions to repeat recorded decisions without servers"
            raise ConfigurationError("--endpoints is missing", remedy=remedy)
        targets = parse_targets(flags.replayed.slo)
        configs = [read_named_config(name) for name in flags.config]
        fleet = load_fleet(flags.endpoints, flags.replayed.profile or (), prices=flags.replayed.prices)
        warnings = [check_config(config, _options(flags, 0)) for config in configs]
        for name, found in zip(flags.config, warnings, strict=True):
            for warning in found:
                typer.echo(f"warning: {name}: {warning}", err=True)
        outcomes = _outcomes(flags, configs, fleet)
        _warn_of_long_requests(outcomes[0], fleet)
        compared = compare(outcomes, targets)
        reports = [
            ReplayReport(
                name,
                int(outcome.seed.max(initial=0)) + 1,
                groups(outcome, targets),
                comparison,
                outcome.adapter_loads,
                outcome.preemptions,
                found,
            )
            for name, outcome, comparison, found in zip(flags.config, outcomes, compared, warnings, strict=True)
        ]
        if flags.report is not None:
            rows = [[label, *(show(report.figures.all) for report in reports)] for label, show in _ROWS]
            write_text(flags.report, replay_report(flags.trace.name, flags.config, outcomes, rows, targets))
    if flags.output is Output.JSON:
        print_json({"replays": msgspec.to_builtins(reports)})
    else:
        _show(new_console(), reports)


def _warn_of_long_requests(outcome: Outcome, fleet: Fleet) -> None:
    """Warn about requests that are longer than the context of every server, and therefore refused."""
    columns = outcome.columns
    longest = max(server.profile.max_model_len for server in fleet.servers)
    count = int((columns.prompt_tokens + columns.output_tokens > longest).sum())
    if count:
        typer.echo(
            f"warning: {count:,} of {len(outcome):,} requests are refused, because they are longer than the context of "
            f"every server, {longest:,} tokens: raise max_model_len in a server profile and give its file to --profile",
            err=True,
        )


def _outcomes(flags: Replay, configs: Sequence[LoadedConfig], fleet: Fleet) -> list[Outcome]:
    """Return the outcome of each configuration, of all seeds together."""
    first = _run(flags, configs, fleet, range(1 if flags.seeds is None else flags.seeds))
    if flags.seeds is None and len(first[0][0]) <= _MOST_REPEATED:
        more = _run(flags, configs, fleet, range(1, _SEEDS))
        first = [[*one, *others] for one, others in zip(first, more, strict=True)]
    return [merge(each) for each in first]


def _run(flags: Replay, configs: Sequence[LoadedConfig], fleet: Fleet, seeds: range) -> list[list[Outcome]]:
    jobs = [Job(config, fleet, _trace(flags), _options(flags, seed)) for config in configs for seed in seeds]
    done = [0.0] * len(jobs)
    with progress_bar("replay", lambda: len(jobs) * _trace_seconds(flags)) as show:

        def report(job: int, seconds: float) -> None:
            done[job] = seconds
            show(sum(done))

        outcomes = run_jobs(jobs, report)
    count = len(seeds)
    return [outcomes[start : start + count] for start in range(0, len(outcomes), count)]


def _trace(flags: Replay) -> TraceFile:
    return TraceFile(flags.trace, flags.replayed.trace_format or "", flags.replayed.trace_rate)


def _options(flags: Replay, seed: int) -> ReplayOptions:
    return ReplayOptions(
        seed=seed,
        rate_scale=flags.replayed.rate_scale,
        limit=flags.limit,
        duration=flags.duration,
        timeout_seconds=flags.timeout,
        pickers=flags.replayed.pickers,
        share_seconds=flags.shared_after,
        objects=split_list(flags.objects),
        experimental=flags.allow_experimental_plugins,
        plugin_modules=split_list(flags.allow_plugin_modules),
    )


def _trace_seconds(flags: Replay) -> float:
    """Return the length of the replayed part of the trace."""
    last = 0.0
    for number, request in enumerate(_trace(flags).open()):
        last = request.at / flags.replayed.rate_scale
        if number == flags.limit or (flags.duration is not None and last > flags.duration):
            break
    return max(last, 1.0)


def _show(console: Console, reports: Sequence[ReplayReport]) -> None:
    table = plain_table("", *(f">{_plain(report.config)}" for report in reports))
    for label, show in _ROWS:
        table.add_row(label, *(show(report.figures.all) for report in reports))
    console.print(table)
    for report in reports[1:]:
        console.print()
        console.print(_differences(report, reports[0].config))
    for title, group in (("model", "models"), ("tenant", "tenants"), ("class", "classes")):
        names = list(dict.fromkeys(name for report in reports for name in getattr(report.figures, group)))
        if len(names) > 1:
            console.print()
            console.print(_group_table(title, names, [getattr(report.figures, group) for report in reports], reports))


def _differences(report: ReplayReport, first: str) -> Table:
    table = plain_table(f"{_plain(report.config)} against {_plain(first)}", ">difference", ">95 % interval", "")
    for name, (label, show) in _COMPARED.items():
        if (found := report.comparison.differences.get(name)) is not None:
            ends = [_signed(each, show) for each in (found.low, found.high)]
            bounds = _UNKNOWN if found.low is None and found.high is None else " to ".join(ends)
            style = {"better": "green", "worse": "red"}.get(found.verdict, "dim")
            table.add_row(label, _signed(found.value, show), bounds, Text(found.verdict, style=style))
    return table


def _signed(value: float | None, show: Callable[[float], str]) -> str:
    if value is None:
        return _UNKNOWN
    return f"{'-' if value < 0 else '+'}{show(abs(value))}"


def _group_table(
    title: str, names: Sequence[str], figures: Sequence[dict[str, Summary]], reports: Sequence[ReplayReport]
) -> Table:
    table = plain_table(title, "config", ">requests", ">p90 ttft", ">p90 total", ">goodput", ">$/1,000")
    for name in names:
        for report, found in zip(reports, figures, strict=True):
            if (summary := found.get(name)) is not None:
                table.add_row(
                    _plain(name) or Text("(none)", style="dim"),
                    _plain(report.config),
                    f"{summary.requests:,}",
                    _time(summary.ttft.p90),
                    _time(summary.total.p90),
                    _share(summary.goodput),
                    _dollars(summary.dollars_per_1000_requests),
                )
    return table


def _time(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _times(quantiles: Quantiles) -> str:
    return " / ".join(map(_time, (quantiles.p50, quantiles.p90, quantiles.p99)))


def _share(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{share:.1%}"


def _dollars(dollars: float | None) -> str:
    return _UNKNOWN if dollars is None else f"${dollars:.4f}"


_COMPARED: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "ttft.p50": ("first token, p50", _time),
    "ttft.p90": ("first token, p90", _time),
    "ttft.p99": ("first token, p99", _time),
    "tpot.p90": ("between tokens, p90", _time),
    "total.p50": ("whole request, p50", _time),
    "total.p90": ("whole request, p90", _time),
    "total.p99": ("whole request, p99", _time),
    "goodput": ("within targets", _share),
    "dollars_per_1000_requests": ("dollars for 1,000 requests", _dollars),
    "cached_share": ("prompt tokens cached", _share),
    "session_pace_spread": ("spread of pace in sessions", _share),
    "fairness": ("fairness among tenants", "{:.3f}".format),
    "refused": ("refused", _share),
    "timed_out": ("timed out", _share),
    "mean_regret": ("regret, mean", _time),
}
_ROWS: Sequence[tuple[str, Callable[[Summary], str]]] = (
    ("requests", lambda one: f"{one.requests:,}"),
    ("first token, p50 / p90 / p99", lambda one: _times(one.ttft)),
    ("between tokens, p50 / p90 / p99", lambda one: _times(one.tpot)),
    ("whole request, p50 / p90 / p99", lambda one: _times(one.total)),
    ("within targets", lambda one: _share(one.goodput)),
    ("dollars for 1,000 requests", lambda one: _dollars(one.dollars_per_1000_requests)),
    ("dollars for 1 million tokens", lambda one: _dollars(one.dollars_per_million_tokens)),
    ("prompt tokens cached", lambda one: _share(one.cached_share)),
    ("spread of pace in sessions", lambda one: _share(one.session_pace_spread)),
    ("fairness among tenants", lambda one: _UNKNOWN if one.fairness is None else f"{one.fairness:.3f}"),
    ("refused", lambda one: f"{one.refused:,}"),
    ("timed out", lambda one: f"{one.timed_out:,}"),
    ("evicted", lambda one: f"{one.evicted:,}"),
    ("regret, mean", lambda one: _time(one.mean_regret)),
    ("regret, p90", lambda one: _time(one.p90_regret)),
)


def _plain(text: str) -> str:
    return printable(text, _MOST_NAME)
