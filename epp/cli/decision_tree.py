# SPDX-License-Identifier: Apache-2.0
"""A decision as a tree for a terminal: filters with those they dropped, scores that add up, the pick and the end.

Names in a record may be of clients: they are printed as plain text.
"""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from epp.decisions.record import (
    CandidateScore,
    DecisionRecord,
    Failure,
    FilterStep,
    ProfileRun,
    ScorerStep,
    ShadowRun,
)
from epp.framework.printable import printable

_MOST_TEXT = 300
_MOST_CANDIDATES = 10
_MOST_DROPPED = 8
_BAR = 12
_FULL, _PARTS = "█", " ▏▎▍▌▋▊▉"


def show(console: Console, record: DecisionRecord) -> None:
    """Print a record."""
    console.print(_title(record))
    for label, said in _facts(record):
        console.print(_line(f"{label:<9}", said))
    for run in record.profiles:
        console.print()
        console.print(_profile(run, record.failure))
    console.print()
    for label, said in _outcome(record):
        console.print(_line(f"{label:<9}", said))


def _title(record: DecisionRecord) -> Text:
    style = {"routed": "green", "refused": "red"}.get(record.kind, "cyan")
    return Text.assemble(
        ("decision ", "bold"),
        (_plain(record.id), "bold"),
        "  ",
        (record.kind, style),
        (f"  {_plain(record.at)}", "dim"),
        (f"  recorded: {_plain(record.recorded_for)}" if record.recorded_for else "", "dim"),
    )


def _facts(record: DecisionRecord) -> Iterator[tuple[str, str]]:
    asked = record.asked
    model = _plain(asked.model) or "no model"
    if asked.target_model:
        model += f" -> {_plain(asked.target_model)}" + (f" by {_plain(asked.rewrite)}" if asked.rewrite else "")
    yield "request", _joined(_plain(record.request_id), _plain(asked.path), model)
    yield (
        "as",
        _joined(
            f"priority {asked.priority}" + (f" by {_plain(asked.objective)}" if asked.objective else ""),
            f"flow {_plain(asked.fairness_id)}" if asked.fairness_id else "",
            f"tenant {_plain(asked.tenant)}" if asked.tenant else "",
            f"{asked.size_bytes} bytes",
            "streaming" if asked.streaming else "",
            f"seed {_plain(asked.seed)}" if asked.seed else "",
        ),
    )
    if asked.subset:
        more = f" and {asked.subset_more} more" if asked.subset_more else ""
        yield "subset", ", ".join(map(_plain, asked.subset)) + more
    seen = record.seen
    if seen is not None:
        yield (
            "seen",
            _joined(
                f"{seen.endpoints} endpoints",
                f"{seen.available} available",
                f"{seen.eligible} allowed by the gateway" if seen.eligible != seen.available else "",
                f"{seen.screened} considered",
                f"snapshot {seen.generation}, {_seconds(seen.age_seconds)} old",
            ),
        )
    yield "why", _plain(record.why)


def _outcome(record: DecisionRecord) -> Iterator[tuple[str, str]]:
    pick, times = record.pick, record.timings
    if pick is not None:
        yield (
            "picked",
            _joined(
                f"{_plain(pick.endpoint)} at {_plain(pick.address)}",
                f"then {', '.join(map(_plain, pick.fallbacks))}" if pick.fallbacks else "",
                _plain(pick.accelerator or pick.accelerator_model),
                _dollars(pick.cost_per_hour),
                f"policy {_plain(pick.policy)}" if pick.policy else "",
                f"{pick.cached_share:.0%} cached" if pick.cached_share is not None else "",
                f"headers {', '.join(map(_plain, pick.headers))}" if pick.headers else "",
            ),
        )
    if record.failure is not None:
        yield "refused", _failure(record.failure)
    end = record.ending
    if end is not None:
        yield (
            "ended",
            _joined(
                _plain(end.cause),
                f"status {end.status}" if end.status else "no response",
                f"served by {_plain(end.served_endpoint)}, a fallback" if end.is_fallback else "",
                f"{end.response_bytes} bytes",
                f"{end.prompt_tokens}+{end.completion_tokens} tokens" if end.prompt_tokens is not None else "",
                f"{end.cached_tokens} of them cached" if end.cached_tokens else "",
            ),
        )
    elif record.kind == "routed":
        yield "ended", "not yet"
    took = _joined(
        f"scheduling {_seconds(times.scheduling)}" if times.scheduling else "",
        f"queue {_seconds(times.queue)} ({_plain(times.queue_outcome)})" if times.queue_outcome else "",
        f"first byte {_seconds(times.first_byte)}" if times.first_byte is not None else "",
        f"all {_seconds(times.total)}" if times.total is not None else "",
    )
    if took:
        yield "took", took
    for shadow in record.shadows:
        yield "shadow", _shadow(shadow)


def _profile(run: ProfileRun, said_below: Failure | None) -> Tree:
    title = Text.assemble(
        ("profile ", "bold"),
        (_plain(run.name), "bold"),
        f": {run.considered} candidates",
        (" (decides)" if run.primary else "", "dim"),
    )
    tree = Tree(title, guide_style="dim")
    for step in run.filters:
        branch = tree.add(_filter_title(step))
        for dropped in step.dropped[:_MOST_DROPPED]:
            why = f": {_plain(dropped.reason)}" if dropped.reason else ""
            branch.add(Text.assemble(("✗ ", "red"), f"{_plain(dropped.endpoint)}{why}"))
        more = max(len(step.dropped) - _MOST_DROPPED, 0) + step.dropped_more
        if more:
            branch.add(Text(f"and {more} more", "dim"))
    if run.candidates:
        count = len(run.candidates) + run.candidates_more
        scores = tree.add(Text(f"scores of {count}" if run.scorers else f"{count} without scores"))
        scores.add(_scores(run))
        for note in _zeros(run.scorers, run.candidates):
            scores.add(note)
        more = max(len(run.candidates) - _MOST_CANDIDATES, 0) + run.candidates_more
        if more:
            scores.add(Text(f"and {more} more", "dim"))
    if run.picker:
        names = [_plain(each.endpoint) for each in run.candidates if each.rank is not None]
        tree.add(Text.assemble(f"{_plain(run.picker)}: ", (", then ".join(names), "green")))
    if run.failure is not None and run.failure != said_below:
        tree.add(Text.assemble(("failed: ", "red"), _failure(run.failure)))
    return tree


def _filter_title(step: FilterStep) -> Text:
    text = Text.assemble(f"{_plain(step.plugin)}: ", (f"{step.before} -> {step.after}", "bold"))
    if step.problem:
        text.append(f"  {_plain(step.problem)}", "yellow")
    return text


def _scores(run: ProfileRun) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("endpoint", overflow="fold")
    table.add_column("total", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for step in run.scorers:
        weight = "" if step.weight == 1 else f"\nx{step.weight:g}"
        table.add_column(_plain(step.plugin).replace("-", "-\n") + weight, justify="right", no_wrap=True)
    table.add_column("load, hardware", overflow="fold")
    best = max((abs(each.total) for each in run.candidates), default=0.0)
    for each in run.candidates[:_MOST_CANDIDATES]:
        picked = each.rank is not None
        name = Text(("> " if each.rank == 0 else "  ") + _plain(each.endpoint), "green" if picked else "")
        parts = zip(run.scorers, each.scores, each.contributions, strict=False)
        table.add_row(
            name,
            f"{each.total:.3f}",
            Text(_bar(each.total, best), "green" if picked else "dim"),
            *(_score(step, score, part) for step, score, part in parts),
            _joined(*_load(each)),
        )
    return table


def _score(step: ScorerStep, score: float, part: float) -> str:
    if step.problem:
        return "failed"
    return f"{score:.3f}" if step.weight == 1 else f"{part:.3f} ({score:.3f})"


def _load(each: CandidateScore) -> Iterator[str]:
    if each.in_flight is not None:
        yield f"{each.in_flight} in flight"
    if each.waiting is not None:
        yield f"{each.waiting:g} waiting"
    if each.running is not None:
        yield f"{each.running:g} running"
    if each.kv_usage is not None:
        yield f"KV {each.kv_usage:.0%}"
    yield _plain(each.accelerator)
    yield _dollars(each.cost_per_hour)


def _zeros(scorers: Sequence[ScorerStep], candidates: Sequence[CandidateScore]) -> Iterator[Text]:
    """Yield what a score of 0 means, for the scorers that gave one, and the errors of those that failed."""
    for number, step in enumerate(scorers):
        if step.problem:
            yield Text.assemble((f"{_plain(step.plugin)} failed: ", "yellow"), _plain(step.problem))
            continue
        names = [
            _plain(each.endpoint)
            for each in candidates[:_MOST_CANDIDATES]
            if number < len(each.scores) and each.scores[number] == 0
        ]
        if names and step.zero_means:
            yield Text(f"0 of {_plain(step.plugin)}: {', '.join(names)}: {_plain(step.zero_means)}", "dim")


def _bar(value: float, best: float) -> str:
    eighths = round(max(value, 0.0) / best * _BAR * 8) if best > 0 else 0
    whole, part = divmod(eighths, 8)
    return (_FULL * whole + (_PARTS[part] if part else "")).ljust(_BAR)


def _failure(failure: Failure) -> str:
    said = _plain(failure.detail or failure.message)
    return _joined(f"{failure.status} {_plain(failure.type)}", _plain(failure.reason), said)


def _shadow(shadow: ShadowRun) -> str:
    if shadow.problem:
        return _joined(_plain(shadow.profile), _plain(shadow.problem))
    return _joined(
        f"{_plain(shadow.profile)}: {_plain(shadow.endpoint)}",
        "the same" if shadow.agrees else "another",
        f"scores {shadow.score_gap:+.3f}" if shadow.score_gap else "",
        _plain(shadow.accelerator),
        _dollars(shadow.cost_per_hour),
    )


def _line(label: str, said: str) -> Table:
    grid = Table.grid()
    grid.add_column(no_wrap=True, style="dim", min_width=len(label))
    grid.add_column(overflow="fold")
    grid.add_row(label, Text(said))
    return grid


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _plain(text: str) -> str:
    return printable(text, _MOST_TEXT)


def _dollars(cost: float | None) -> str:
    return "" if cost is None else f"${cost:.2f}/h"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3f} s"
