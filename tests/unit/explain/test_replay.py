# SPDX-License-Identifier: Apache-2.0
"""Recorded decisions, taken again: by the configuration under which they were recorded, and by others."""

import random
from textwrap import dedent

import msgspec
import pytest
from typer.testing import CliRunner

from epp.cli.app import application
from epp.config import Assembly, Builder, assemble, load_text
from epp.explain.building import record_of
from epp.explain.comparison import Comparison, compare
from epp.explain.record import DecisionRecord
from epp.explain.replay import called_again
from epp.framework import Endpoint, Headers, ManualClock
from epp.framework.accelerators.tag import AcceleratorTag, Cost
from epp.framework.datalayer import Report
from epp.framework.errors import RequestError
from epp.framework.registry import Registry
from epp.framework.snapshot import ACCELERATOR, KV_USAGE, RUNNING, WAITING
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, Director, DirectorObserver, Runtime, Seeds

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
A = HEAD + dedent("""\
    plugins:
    - {type: queue-scorer}
    - {type: kv-cache-utilization-scorer}
    - {type: prefix-cache-scorer}
    - type: utilization-filter
      parameters: {conditions: [{metric: waiting-queue, maxValue: 6}], fallbackOnEmpty: false}
    schedulingProfiles:
    - name: default
      plugins:
      - {pluginRef: utilization-filter}
      - {pluginRef: queue-scorer, weight: 2}
      - {pluginRef: kv-cache-utilization-scorer}
      - {pluginRef: prefix-cache-scorer, weight: 3}
    """)
CHEAP = A.replace("- {type: queue-scorer}\n", "- {type: queue-scorer}\n- {type: cheapest-scorer}\n", 1).replace(
    "{pluginRef: queue-scorer, weight: 2}", "{pluginRef: cheapest-scorer, weight: 20}"
)
RANDOM = A.replace("- {type: queue-scorer}\n", "- {type: queue-scorer}\n- {type: weighted-random-picker}\n", 1).replace(
    "- {pluginRef: utilization-filter}", "- {pluginRef: utilization-filter}\n  - {pluginRef: weighted-random-picker}"
)


class Recording(DirectorObserver):
    """Records all decisions."""

    def __init__(self) -> None:
        self.records: list[DecisionRecord] = []
        self.profiles = {}

    def routed(self, request, result, scheduling_seconds):
        self._add(request, result, "routed")

    def refused(self, refusal):
        if refusal.request is not None:
            self._add(refusal.request, refusal.error, "refused")

    def _add(self, request, outcome, kind):
        number = len(self.records)
        record = record_of(request, outcome, self.profiles, id=f"d{number}", kind=kind, at=1e9 + number)
        self.records.append(msgspec.json.decode(msgspec.json.encode(record), type=DecisionRecord))


def built(text: str) -> Assembly:
    return assemble(load_text(text), Builder(Registry(), ManualClock()))


def recorded(config: str, count: int = 60, endpoints: int = 5) -> list[DecisionRecord]:
    """Return decisions on requests of some prompts to endpoints whose load changes."""
    clock, draw, watch = ManualClock(), random.Random(7), Recording()
    store, assembly = Datastore(clock), built(config)
    pool = [Endpoint(f"e{i}", f"10.0.{i // 200}.{i % 200 + 1}", 8000) for i in range(endpoints)]
    store.replace(pool)
    for i, endpoint in enumerate(pool):
        name, price = ("h100", 4.0) if i % 2 else ("t4", 0.5)
        tag = AcceleratorTag(classes=(name,), count=1, cost=Cost(per_hour=price)).located()
        store.tag(endpoint, Report({}, {ACCELERATOR: tag}))
    watch.profiles = assembly.pipeline.scheduler.profiles
    director = Director(Runtime(store, clock, watch), assembly.pipeline, seeds=Seeds(b"test"))
    under_way = []
    for number in range(count):
        for endpoint in pool:
            load = float(draw.choice([0, 1, 3, 9]))
            store.report(endpoint, Report({WAITING: load, RUNNING: load, KV_USAGE: draw.random()}))
        body = msgspec.json.encode({"model": "m", "prompt": f"topic {number % 4} " * 100})
        try:
            under_way.append(director.route(Headers([(":path", "/v1/completions")]), body, None))
        except RequestError:
            continue
        if len(under_way) > 6:
            under_way.pop(0).complete(Cause.NATURAL)
    return watch.records


@pytest.fixture(scope="module")
def records() -> list[DecisionRecord]:
    return recorded(A)


@pytest.mark.parametrize("config", [A, CHEAP, RANDOM], ids=["best score", "cheapest", "at random"])
def test_gie_17_the_same_configuration_takes_every_decision_as_it_was_recorded(config):
    found = compare(recorded(config), built(config), built(config))
    assert (found.replayed, found.reproduced, found.differing) == (60, 60, 0)
    assert found.config == found.against
    assert found.asked_anew == {}


def test_another_configuration_differs_by_class_and_cost(records):
    found = compare(records, built(A), built(CHEAP))
    assert found.reproduced == found.replayed == 60
    assert 0 < found.differing <= 60
    assert found.against.cost_per_hour < found.config.cost_per_hour
    assert found.against.classes["t4"] > found.config.classes["t4"]
    assert {(move.before, move.after) for move in found.moves} <= {("h100", "t4"), ("t4", "t4"), ("h100", "h100")}
    assert sum(move.count for move in found.moves) == found.differing
    assert set(found.recalled) == {"utilization-filter", "kv-cache-utilization-scorer", "prefix-cache-scorer"}
    assert found.asked_anew == {"cheapest-scorer": ()}


def test_refusals_are_taken_again_too(records):
    busy = A.replace("maxValue: 6", "maxValue: 0.5")
    found = compare(recorded(busy), built(busy), built(A))
    assert sum(found.config.refused.values()) > 0
    assert found.reproduced == found.replayed
    assert found.against.routed > found.config.routed
    assert found.against.load_unknown > 0  # of endpoints that were dropped, records have no load
    assert any(move.before == "refused: AllBusy" for move in found.moves)


def test_plugin_with_other_parameters_or_another_producer_is_asked_anew():
    one = built(A)
    assert called_again(built(A.replace("maxValue: 6", "maxValue: 2")), one) == {"utilization-filter": ()}
    blocks = A.replace(
        "plugins:\n", "plugins:\n- {type: approx-prefix-cache-producer, parameters: {blockSizeTokens: 128}}\n", 1
    )
    assert called_again(built(blocks), one) == {"prefix-cache-scorer": ("prefix-match",)}


def test_records_that_say_nothing_of_endpoints_are_left_out(records):
    simulated = msgspec.structs.replace(records[0], kind="simulated")
    early = msgspec.structs.replace(records[0], kind="refused", profiles=(), pick=None)
    found = compare([*records[:3], simulated, early], built(A), built(A))
    assert (found.decisions, found.replayed) == (5, 3)
    assert sum(found.skipped.values()) == 2


def test_nothing_to_compare_is_no_error_and_lists_that_were_cut_are_said():
    found = compare([], built(A), built(A))
    assert (found.replayed, found.config.busiest, found.config.cost_per_hour) == (0, "", None)
    found = compare(recorded(A, count=5, endpoints=80), built(A), built(A))
    assert found.cut == 5
    assert found.reproduced == 5


@pytest.fixture
def files(tmp_path, records):
    (tmp_path / "a.yaml").write_text(A)
    (tmp_path / "b.yaml").write_text(CHEAP)
    lines = [msgspec.json.encode(record) for record in records]
    (tmp_path / "decisions.jsonl").write_bytes(b"\n".join([*lines, b"half a line", b'{"version":99']) + b"\n")
    (tmp_path / "answer.json").write_bytes(b'{"decisions":[' + b",".join(lines[:10]) + b'],"recorded":{}}\n')
    return tmp_path


def run(*arguments: object):
    return CliRunner().invoke(application(), ["replay", *map(str, arguments), "--decisions"])


def test_command_says_how_many_picks_differ(files):
    found = run(files / "decisions.jsonl", "--config", files / "a.yaml", "--config", files / "b.yaml")
    assert found.exit_code == 0, found.output
    assert "of 60 picks differ" in found.output
    assert "the first configuration reproduces 60 of 60 recorded picks" in found.output
    assert "2 lines are not records that this version can read" in found.output
    assert "cheapest-scorer is called again" in found.output


def test_command_reads_an_answer_of_the_admin_port_prints_json_and_takes_the_last_decisions(files):
    configs = ("--config", files / "a.yaml", "--config", "random")
    assert "of 10 picks differ" in run(files / "answer.json", *configs).output
    shown = msgspec.json.decode(run(files / "decisions.jsonl", *configs, "--limit", 20, "--output", "json").stdout)
    assert (shown["replayed"], shown["unreadLines"]) == (20, 2)
    assert msgspec.convert({k: v for k, v in shown.items() if k != "unreadLines"}, Comparison).replayed == 20


@pytest.mark.parametrize(
    ("config", "decisions", "message"),
    [
        ("no-such", "decisions.jsonl", "there is no file or ready-made configuration 'no-such'; known are adapt"),
        ("adaptive", "a.yaml", "has no decisions, but"),
        ("adaptive", "missing.jsonl", "missing.jsonl cannot be read: No such file or directory"),
        ("adaptive", ".", "cannot be read: Is a directory"),
        ("{files}/decisions.jsonl", "decisions.jsonl", "decisions.jsonl"),
    ],
)
def test_command_names_what_is_wrong(files, config, decisions, message):
    found = run(files / decisions, "--config", config.format(files=files), "--config", "random")
    assert found.exit_code == 1
    assert message in found.output.replace("\n", " ")
    found = run(files / decisions, "--config", config.format(files=files))
    assert found.exit_code == 1
    assert "--decisions compares two configurations, not 1" in " ".join(found.output.split())
