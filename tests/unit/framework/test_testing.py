# SPDX-License-Identifier: Apache-2.0
"""What authors of plugins test with."""

from dataclasses import FrozenInstanceError
from operator import setitem

import numpy as np
import pytest

from epp.framework import (
    ACCELERATOR,
    LORA,
    RUNNING,
    WAITING,
    AcceleratorTag,
    Aggregator,
    ConfigurationError,
    DataKey,
    Destination,
    Filter,
    Picker,
    PreRequest,
    Producer,
    ProfilePicker,
    Request,
    RequestBody,
    Scorer,
)
from epp.framework.errors import PluginFailedError
from epp.framework.refusals import SaturatedError
from epp.framework.testing import candidates, endpoint_rates, run_profile, run_scheduling

WORD: DataKey[str] = DataKey("word", "says")


class Says(Producer):
    plugin_type = "says"
    writes = (WORD,)

    def produce(self, request, candidates):
        request.put(WORD, "e1")


class Named(Scorer):
    """1 for the endpoint that a producer names."""

    plugin_type = "named"
    reads = (WORD,)

    def score(self, request, candidates):
        return [float(endpoint.name == request.get(WORD)) for endpoint in candidates.endpoints]


class Few(Filter):
    """Keeps endpoints with at most 4 running."""

    plugin_type = "few"
    reads = (RUNNING,)

    def filter(self, request, candidates):
        return candidates.values(RUNNING) <= 4


class Odd(Scorer):
    """Scores that are out of range, or none."""

    plugin_type = "odd"

    def score(self, request, candidates):
        return np.where(np.arange(len(candidates)) == 0, np.nan, 2.0)


class Missing(Scorer):
    plugin_type = "missing"

    def score(self, request, candidates):
        return {}["score"]


CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: few}
- {type: named}
- {type: queue-scorer}
- {type: header-profile-handler, parameters: {defaultProfile: b}}
schedulingProfiles:
- {name: a, plugins: [{pluginRef: few}, {pluginRef: named, weight: 3}, {pluginRef: queue-scorer}]}
- {name: b, plugins: [{pluginRef: queue-scorer}]}
"""
OWN = (Says, Named, Few)
POOL = candidates(waiting=[0, 4, 0], running=[1, 2, 9])


def test_plugins_run_as_a_profile_stage_by_stage():
    run = run_profile([Says(), Few(), (Named(), 3)], POOL)
    assert run.kept == {"few": ("e0", "e1")}
    assert run.scores == {"named": {"e0": 0.0, "e1": 1.0}}
    assert run.totals == {"e0": 0.0, "e1": 3.0}
    assert run.picked == ("e1",)
    assert run.problems == {}


def test_profile_of_a_configuration_runs_with_its_producers_and_weights():
    run = run_profile(CONFIG, POOL, name="a", plugins=OWN)
    assert run.kept == {"few": ("e0", "e1")}
    assert run.scores == {"named": {"e0": 0.0, "e1": 1.0}, "queue-scorer": {"e0": 1.0, "e1": 0.0}}
    assert run.totals == {"e0": 1.0, "e1": 3.0}
    assert run.picked == ("e1",)


def test_whole_configuration_runs_the_profiles_that_its_profile_picker_chooses():
    result = run_scheduling(CONFIG, POOL, Request("r", RequestBody(model="m")), plugins=OWN)
    assert list(result.profiles) == ["b"]
    assert result.targets[0].name in {"e0", "e2"}


def test_picker_is_the_given_one():
    class Last(Picker):
        plugin_type = "last"

        def pick(self, request, candidates, totals, draw):
            return np.array([len(candidates) - 1])

    assert run_profile([Last()], POOL).picked == ("e2",)
    with pytest.raises(ValueError, match="two pickers"):
        run_profile([Last(), Last()], POOL)


def test_what_is_wrong_with_a_plugin_is_a_problem():
    run = run_profile([Odd(), Missing()], candidates(waiting=[0, 0]))
    assert run.problems["odd"] == "1 scores are below 0 or above 1"
    assert run.problems["missing"].startswith("KeyError: 'score' (")
    assert run.scores["odd"] == {"e0": 0.0, "e1": 1.0}


def test_profile_that_fails_raises_as_for_a_request():
    with pytest.raises(SaturatedError):
        run_profile([Few()], candidates(running=[5]))

    class Breaks(Filter):
        plugin_type = "breaks"

        def filter(self, request, candidates):
            raise LookupError("gone")

    with pytest.raises(PluginFailedError, match="LookupError: gone"):
        run_profile([Breaks()], POOL)


def test_name_of_a_profile_is_needed_where_there_are_several():
    for name in ("", "c"):
        with pytest.raises(ValueError, match="name one of a, b"):
            run_profile(CONFIG, POOL, name=name, plugins=OWN)


def test_configuration_that_is_wrong_says_where():
    with pytest.raises(
        ConfigurationError, match=r"config:5:4: plugins\[0\]\.type: plugin type 'few' is not registered"
    ):
        run_profile(CONFIG, POOL, name="b", plugins=(Says, Named))


def test_accelerators_and_labels_are_given_as_lists():
    pool = candidates(accelerators=[AcceleratorTag(model="t4"), AcceleratorTag(model="h100")], labels=[{"zone": "a"}])
    assert [tag.model for tag in pool.records(ACCELERATOR)] == ["t4", "h100"]
    assert [dict(endpoint.labels) for endpoint in pool.endpoints] == [{"zone": "a"}, {}]


def _total(values):
    return np.array([len(values)])


WRITES = {
    "columns": lambda pool: setitem(pool.snapshot.columns, "waiting", np.zeros(3)),
    "a column": lambda pool: setitem(pool.snapshot.column(WAITING), 0, 9.0),
    "slots": lambda pool: setitem(pool.slots, 0, 2),
    "slots of some": lambda pool: setitem(pool.keep(np.array([True, False, True])).slots, 0, 2),
    "slots of the pool": lambda pool: setitem(pool.snapshot.slots, 0, 2),
    "attributes": lambda pool: setitem(pool.snapshot.attributes, "lora", ()),
    "records": lambda pool: setitem(pool.snapshot.records(LORA).values, 0, None),
    "what is derived": lambda pool: setitem(pool.snapshot.records(LORA).derive(_total), 0, 1),
    "a mask": lambda pool: setitem(pool.snapshot.endpoints.derive(_total), 0, 1),
    "labels": lambda pool: setitem(pool[0].labels, "zone", "b"),
    "an endpoint": lambda pool: setattr(pool[0], "name", "other"),
    "rates": lambda _: setitem(endpoint_rates([1, 2]).prefill_tokens_per_second, 0, 9),
    "kinds": lambda _: setitem(endpoint_rates([1, 2]).kinds, 0, 9),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_what_plugins_are_shown_is_read_only(write):
    with pytest.raises((ValueError, TypeError, FrozenInstanceError)):
        write(candidates(waiting=[0, 1, 2], labels=[{"zone": "a"}] * 3))


class Meddler(ProfilePicker, Aggregator, Picker, PreRequest):
    """Writes to everything that it is shown, and counts what it got away with."""

    plugin_type = "meddler"

    def setup(self):
        self.written = []

    def attempt(self, what, write):
        try:
            write()
        except (ValueError, TypeError):
            return
        self.written.append(what)

    def pick_profiles(self, request, profiles, results):
        self.attempt("results", lambda: setitem(results, "p", None))
        return () if results else profiles

    def pick(self, request, candidates, totals, draw):
        self.attempt("totals", lambda: setitem(totals, 0, 9.0))
        return np.array([0])

    def aggregate(self, request, results):
        self.attempt("results", lambda: setitem(results, "p", None))
        return Destination(results["p"], {})

    def pre_request(self, request, result):
        self.attempt("headers", lambda: setitem(result.destination.headers, "x-any", "1"))
        self.attempt("profiles", lambda: setitem(result.profiles, "p", None))
        self.attempt("errors", lambda: setitem(result.errors, "p", None))
        self.attempt("totals", lambda: setitem(result.primary.totals, 0, 9.0))
        self.attempt("scores", lambda: setitem(result.primary.scores[0].scores, 0, 9.0))


def test_results_are_read_only_for_the_plugins_that_see_them():
    from epp.routing.scheduling.profile import Profile, WeightedScorer  # noqa: PLC0415
    from epp.routing.scheduling.scheduler import Scheduler  # noqa: PLC0415

    class Keeps(Scorer):
        """Returns an array of its own, which stays its own."""

        plugin_type = "keeps"
        mine = np.zeros(2)

        def score(self, request, candidates):
            self.mine[:] = 0.5
            return self.mine

    meddler = Meddler()
    profile = Profile("p", (), (WeightedScorer(Keeps()),), meddler)
    for _ in range(2):
        result = Scheduler({"p": profile}, meddler, meddler).schedule(Request("r"), candidates(waiting=[0, 0]))
        meddler.pre_request(Request("r"), result)
    assert meddler.written == []
    assert result.primary.totals.tolist() == [0.5, 0.5]
