# SPDX-License-Identifier: Apache-2.0
"""A decision as a tree for a terminal: filters and dropped endpoints, scores, the pick and the end.

Clients may have chosen names in a record, so they are printed as plain text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from epp.explain.record import CandidateScore, DecisionRecord, Ending, Failure, ProfileRun, ScorerStep, ShadowRun
from epp.framework.messages import printable

_MOST_TEXT = 300
_MOST_NAMED = 10
_MOST_DROPPED = 8
_MOST_LABEL = 32
_BAR = 12
_CELL, _GAP, _GUIDES = 15, 2, 8
"""Widths in columns: of a cell, of a gap, and of the guides at the left."""
_FULL, _PARTS = "█", " ▏▎▍▌▋▊▉"


def show(console: Console, record: DecisionRecord) -> None:
    console.print(_title(record))
    _show_rows(console, _facts(record))
    for run in record.profiles:
        console.print()
        console.print(_profile(run, console.width, record.failure))
    console.print()
    _show_rows(console, _outcome(record))


def _show_rows(console: Console, rows: Iterator[tuple[str, ...]]) -> None:
    """Print a label and the parts of each row; rows without parts are left out."""
    for label, *parts in rows:
        if text := _joined(*parts):
            grid = Table.grid()
            grid.add_column(no_wrap=True, style="dim", min_width=9)
            grid.add_column(overflow="fold")
            grid.add_row(label, Text(text))
            console.print(grid)


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


def _facts(record: DecisionRecord) -> Iterator[tuple[str, ...]]:
    asked = record.asked
    model = _plain(asked.model) or "no model"
    if asked.target_model:
        model += f" -> {_plain(asked.target_model)}" + (f" by {_plain(asked.rewrite)}" if asked.rewrite else "")
    yield "request", _plain(record.request_id), _plain(asked.path), model
    yield (
        "as",
        f"priority {asked.priority}" + (f" by {_plain(asked.objective)}" if asked.objective else ""),
        f"flow {_plain(asked.fairness_id)}" if asked.fairness_id else "",
        f"tenant {_plain(asked.tenant)}" if asked.tenant else "",
        f"{asked.size_bytes} bytes",
        "streaming" if asked.streaming else "",
        f"seed {_plain(asked.seed)}" if asked.seed else "",
    )
    if asked.subset:
        more = f" and {asked.subset_more} more" if asked.subset_more else ""
        yield "subset", ", ".join(map(_plain, asked.subset)) + more
    seen = record.seen
    if seen is not None:
        yield (
            "seen",
            f"{seen.endpoints} endpoints",
            f"{seen.available} available",
            f"{seen.eligible} allowed by the gateway" if seen.eligible != seen.available else "",
            f"{seen.screened} considered",
            f"snapshot {seen.generation}, {_seconds(seen.age_seconds)} old",
        )
    yield "why", _plain(record.why)


def _outcome(record: DecisionRecord) -> Iterator[tuple[str, ...]]:
    pick, times = record.pick, record.timings
    if pick is not None:
        yield (
            "picked",
            f"{_plain(pick.endpoint)} at {_plain(pick.address)}",
            f"then {', '.join(map(_plain, pick.fallbacks))}" if pick.fallbacks else "",
            _plain(pick.accelerator or pick.accelerator_model),
            _dollars(pick.cost_per_hour),
            f"policy {_plain(pick.policy)}" if pick.policy else "",
            f"{pick.cached_share:.0%} cached" if pick.cached_share is not None else "",
            f"headers {', '.join(map(_plain, pick.headers))}" if pick.headers else "",
        )
    if record.failure is not None:
        yield "refused", _failure(record.failure)
    end = record.ending
    if end is not None:
        yield (
            "ended",
            _plain(end.cause),
            f"status {end.status}" if end.status else "no response",
            f"served by {_plain(end.served_endpoint)}, a fallback" if end.is_fallback else "",
            f"{end.response_bytes} bytes",
            f"{end.prompt_tokens}+{end.completion_tokens} tokens" if end.prompt_tokens is not None else "",
            _cached(end),
        )
    elif record.kind == "routed":
        yield "ended", "not yet"
    yield (
        "took",
        f"scheduling {_seconds(times.scheduling)}" if times.scheduling else "",
        f"queue {_seconds(times.queue)} ({_plain(times.queue_outcome)})" if times.queue_outcome else "",
        f"first byte {_seconds(times.first_byte)}" if times.first_byte is not None else "",
        f"all {_seconds(times.total)}" if times.total is not None else "",
    )
    for shadow in record.shadows:
        yield "shadow", _shadow(shadow)


def _cached(end: Ending) -> str:
    """Describe the cached tokens of the prompt: the predicted number and the reported one."""
    reported, predicted = end.cached_tokens, end.predicted_cached_tokens
    if predicted is not None:
        return f"cached tokens: {predicted} predicted, {'none' if reported is None else reported} reported"
    return f"{reported} of them cached" if reported else ""


def _profile(run: ProfileRun, width: int, shown_below: Failure | None) -> Tree:
    title = Text.assemble(
        ("profile ", "bold"),
        (_plain(run.name), "bold"),
        f": {run.considered} candidates",
        (" (decides)" if run.primary else "", "dim"),
    )
    tree = Tree(title, guide_style="dim")
    for step in run.filters:
        title = Text.assemble(f"{_plain(step.plugin)}: ", (f"{step.before} -> {step.after}", "bold"))
        branch = tree.add(title.append(f"  {_plain(step.problem)}", "yellow") if step.problem else title)
        for dropped in step.dropped[:_MOST_DROPPED]:
            why = f": {_plain(dropped.reason)}" if dropped.reason else ""
            branch.add(Text.assemble(("✗ ", "red"), f"{_plain(dropped.endpoint)}{why}"))
        more = max(len(step.dropped) - _MOST_DROPPED, 0) + step.dropped_more
        if more:
            branch.add(Text(f"and {more} more", "dim"))
    if run.candidates:
        count = len(run.candidates) + run.candidates_more
        scores = tree.add(Text(f"scores of {count}" if run.scorers else f"{count} without scores"))
        shown = run.candidates[: _columns(run, width)]
        scores.add(_scores(run.scorers, shown, max(abs(each.total) for each in run.candidates)))
        for note in _zeros(run.scorers, shown):
            scores.add(note)
        rest = run.candidates[len(shown) : len(shown) + _MOST_NAMED]
        others = [f"{_plain(each.endpoint)} {each.total:.3f}" for each in rest]
        more = count - len(shown) - len(rest)
        if others or more:
            scores.add(Text("then " + ", ".join([*others, f"{more} more"] if more else others), "dim"))
    if run.picker:
        names = [_plain(each.endpoint) for each in run.candidates if each.rank is not None]
        tree.add(Text.assemble(f"{_plain(run.picker)}: ", (", then ".join(names), "green")))
    if run.failure is not None and run.failure != shown_below:
        tree.add(Text.assemble(("failed: ", "red"), _failure(run.failure)))
    return tree


def _columns(run: ProfileRun, width: int) -> int:
    """Return the number of candidates that fit side by side."""
    left = max([len(_label(step)) for step in run.scorers] + [len(name) for name in _FACTS])
    return max(1, (width - _GUIDES - left - _GAP) // (_CELL + _GAP))


def _scores(scorers: Sequence[ScorerStep], candidates: Sequence[CandidateScore], best: float) -> Table:
    """Return a table with a column for each candidate and a row for each scorer and fact."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    table.add_column("", style="dim", no_wrap=True)
    for each in candidates:
        style = "bold" if each.rank is None else "bold green"
        table.add_column(Text(_plain(each.endpoint), style), overflow="fold", max_width=_CELL)
    table.add_row("", *map(_rank, candidates))
    table.add_row("total", *(Text(f"{each.total:.3f}", "bold") for each in candidates))
    styles = ["dim" if each.rank is None else "green" for each in candidates]
    table.add_row("", *(Text(_bar(each.total, best), style) for each, style in zip(candidates, styles, strict=True)))
    for number, step in enumerate(scorers):
        table.add_row(_label(step), *(_score(step, each, number) for each in candidates))
    for name, fact in _FACTS.items():
        cells = [fact(each) for each in candidates]
        if any(cells):
            table.add_row(name, *map(Text, cells))
    return table


def _rank(each: CandidateScore) -> str:
    if each.rank is None:
        return ""
    return f"fallback {each.rank}" if each.rank else "picked"


def _label(step: ScorerStep) -> str:
    return printable(step.plugin, _MOST_LABEL) + ("" if step.weight == 1 else f" x{step.weight:g}")


def _score(step: ScorerStep, each: CandidateScore, number: int) -> str:
    if step.problem or number >= min(len(each.scores), len(each.contributions)):
        return "failed" if step.problem else ""
    score, part = each.scores[number], each.contributions[number]
    return f"{score:.3f}" if step.weight == 1 else f"{part:.3f} ({score:.3f})"


_FACTS: Mapping[str, Callable[[CandidateScore], str]] = {
    "in flight": lambda each: "" if each.in_flight is None else str(each.in_flight),
    "waiting": lambda each: "" if each.waiting is None else f"{each.waiting:g}",
    "running": lambda each: "" if each.running is None else f"{each.running:g}",
    "KV cache": lambda each: "" if each.kv_usage is None else f"{each.kv_usage:.0%}",
    "network": lambda each: "" if each.network_seconds is None else f"{each.network_seconds * 1e3:.3g} ms",
    "accelerator": lambda each: _plain(each.accelerator),
    "price": lambda each: _dollars(each.cost_per_hour),
}


def _zeros(scorers: Sequence[ScorerStep], candidates: Sequence[CandidateScore]) -> Iterator[Text]:
    """Yield the meaning of a score of 0 for each scorer that gave one, and the errors of failed scorers."""
    for number, step in enumerate(scorers):
        if step.problem:
            yield Text.assemble((f"{_plain(step.plugin)} failed: ", "yellow"), _plain(step.problem))
            continue
        names = [_plain(each.endpoint) for each in candidates if number < len(each.scores) and each.scores[number] == 0]
        if names and step.zero_means:
            yield Text(f"0 of {_plain(step.plugin)}: {', '.join(names)}: {_plain(step.zero_means)}", "dim")


def _bar(value: float, best: float) -> str:
    eighths = round(max(value, 0.0) / best * _BAR * 8) if best > 0 else 0
    whole, part = divmod(eighths, 8)
    return (_FULL * whole + (_PARTS[part] if part else "")).ljust(_BAR)


def _failure(failure: Failure) -> str:
    text = _plain(failure.detail or failure.message)
    return _joined(f"{failure.status} {_plain(failure.type)}", _plain(failure.reason), text)


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


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _plain(text: str) -> str:
    return printable(text, _MOST_TEXT)


def _dollars(cost: float | None) -> str:
    return "" if cost is None else f"${cost:.2f}/h"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3f} s"
