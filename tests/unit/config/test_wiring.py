# SPDX-License-Identifier: Apache-2.0
"""Who reads what from whom: what is missing is added, what cannot work is refused at load."""

import sys

import numpy as np
import pytest

from epp.config.probe import Findings, rehearse
from epp.framework import (
    Admitter,
    Candidates,
    DataKey,
    Decider,
    Filter,
    Floats,
    Headers,
    ManualClock,
    Mask,
    Parameters,
    Picker,
    Plugin,
    PreRequest,
    Producer,
    Request,
    RequestBody,
    RequestHeaders,
    Scorer,
)
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.registry import Registry
from epp.framework.request import PREFIX_MATCH, SESSION_ID
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT_TOKENS, LORA, TOPOLOGY, WAITING, Column
from epp.framework.testing import candidates

HEAT: DataKey[float] = DataKey("heat")
LIGHT: DataKey[float] = DataKey("light", "lamp")


def made(kind: str, role: type[Plugin], **attributes) -> type[Plugin]:
    """Return a plugin class with these attributes and methods."""
    return type(kind.title(), (role,), {"plugin_type": kind, "__module__": __name__, **attributes})


def put(key: DataKey[float]):
    """A method that writes this for a request."""
    return lambda self, request, *_: request.put(key, 1.0)


def read(key: DataKey[float]):
    """A method that scores by this."""
    return lambda self, request, candidates: np.full(len(candidates), request.get(key) or 0.0)


def nothing(self, request: Request, candidates: Candidates) -> Floats:
    return np.zeros(len(candidates))


def waiting_is_0(self, request: Request, candidates: Candidates) -> Mask:
    return candidates.values(WAITING) == 0


PLUGINS = (
    made("fire", Producer, writes=(HEAT,), produce=put(HEAT)),
    made("lamp", Producer, writes=(LIGHT,), reads=(HEAT,), produce=put(LIGHT)),
    # reads what the lamp writes, which reads what the stove writes
    made("stove", Producer, writes=(HEAT,), may_read=(LIGHT,), produce=put(HEAT)),
    # writes when the request leaves, which is too late for scorers
    made("ash", PreRequest, writes=(HEAT,), pre_request=put(HEAT)),
    made("spark", RequestHeaders, writes=(HEAT,), request_headers=put(HEAT)),
    made("warm", Scorer, reads=(HEAT,), score=read(HEAT)),
    made("bright", Scorer, reads=(LIGHT,), score=read(LIGHT)),
    made("peeking-filter", Filter, filter=waiting_is_0),
)


class PeekParameters(Parameters, frozen=True):
    datum: str
    declared: bool = False


class Peek(Scorer[PeekParameters]):
    """Reads one datum of each kind, and says so or not."""

    plugin_type = "peek"

    def __init__(self, parameters, *, name="", clock=None):
        super().__init__(parameters, name=name, clock=clock)
        known = {"waiting": WAITING, "lora": LORA, "session-id": SESSION_ID, "oddity": Column("oddity", "")}
        self._datum = known[parameters.datum]
        self.may_read = (self._datum,) if parameters.declared else ()

    def score(self, request: Request, candidates: Candidates) -> Floats:
        if isinstance(self._datum, DataKey):
            request.get(self._datum)
        elif isinstance(self._datum, Column):
            candidates.values(self._datum)
        else:
            candidates.records(self._datum)
        return np.zeros(len(candidates))


@pytest.fixture
def registry():
    registry = Registry()
    for cls in (*PLUGINS, Peek):
        registry.register(cls)
    return registry


def names(plugins) -> list[str]:
    return [plugin.name for plugin in plugins]


def test_producers_are_added_for_all_that_is_read_and_say_why_they_are_there(build):
    assembly = build("plugins: [{type: token-load-scorer}]")
    assert names(assembly.pipeline.of(Producer)) == ["approx-prefix-cache-producer"]
    assert "inflight-load-producer" in names(assembly.pipeline.of(PreRequest))
    assert assembly.instances.implied["approx-prefix-cache-producer"] == "token-load-scorer reads prefix-match"
    assert assembly.instances.implied["inflight-load-producer"] == "token-load-scorer reads in_flight_tokens"


def test_added_count_of_tokens_in_flight_reads_the_prefix_matches_that_there_are(build):
    def source(others, scorer):
        assembly = build(f"plugins: [{{type: approx-prefix-cache-producer, name: mine}}, {others}{scorer}]")
        return assembly.instances.by_name["inflight-load-producer"].parameters.prefix_match_info_producer_name

    named = "{type: work-seconds-scorer, parameters: {prefixMatchInfoProducerName: mine}}"
    assert source("", named) == "mine"
    assert source("", "{type: work-seconds-scorer}") == ""  # the default producer is added for the scorer
    assert source("{type: prefix-cache-scorer}, ", named) == ""
    assert source("{type: approx-prefix-cache-producer, name: other}, ", named) == ""


def test_producers_are_added_transitively_unless_nobody_writes_what_they_read(build, registry, refused):
    assembly = build("plugins: [{type: bright}, {type: fire}]", registry=registry)
    assert assembly.instances.implied["lamp"] == "bright reads light"
    assert names(assembly.pipeline.of(Producer)) == ["fire", "lamp"]  # the lamp reads what the fire writes
    (problem,) = refused("plugins: [{type: bright}]", registry=registry)
    assert problem.message == "plugin 'lamp' reads 'heat', which no plugin here writes"


def test_reader_that_names_none_gets_the_default_one_and_a_warning_of_the_other(build):
    assembly = build("""\
plugins:
- {type: approx-prefix-cache-producer, name: mine}
- {type: prefix-cache-scorer}
""")
    assert names(assembly.pipeline.of(Producer)) == ["mine", "approx-prefix-cache-producer"]
    (warning,) = [str(warning) for warning in assembly.warnings if "mine" in str(warning)]
    assert warning == (
        "c.yaml:5:3: plugins[1]: plugin 'prefix-cache-scorer' reads 'prefix-match' from an added "
        "approx-prefix-cache-producer, not from 'mine': name 'mine' in its parameters, or remove the name of 'mine'"
    )


def test_attribute_that_is_read_brings_its_tagger(build):
    assembly = build("plugins: [{type: topology-affinity-scorer}]")
    assert names(assembly.taggers) == ["topology-extractor"]
    assert assembly.instances.implied["topology-extractor"] == "topology-affinity-scorer reads topology"
    (own,) = build("plugins: [{type: topology-affinity-scorer}, {type: topology-extractor, name: where}]").taggers
    assert own.name == "where"


def test_producers_run_after_those_they_read_and_else_as_declared(build, registry):
    def order(first, second):
        text = f"plugins: [{{type: {first}}}, {{type: {second}}}]"
        return names(build(text, registry=registry).pipeline.of(Producer))

    assert order("lamp", "fire") == ["fire", "lamp"]
    unrelated = ["session-id-producer", "approx-prefix-cache-producer"]
    assert order(*unrelated) == unrelated


def test_producers_that_read_each_other_are_refused(refused, registry):
    (problem,) = refused("plugins: [{type: stove}, {type: lamp}]", registry=registry)
    assert problem.message.startswith("plugins read each other's data in a cycle: ")
    assert {"stove", "lamp"} == set(problem.message.partition(": ")[2].split(" -> "))


def test_reader_before_its_writer_is_refused(build, refused, registry):
    (problem,) = refused("plugins: [{type: ash}, {type: warm}]", registry=registry)
    assert str(problem) == (
        "c.yaml:3:24: plugins[1]: plugin 'warm' reads 'heat', which 'ash' only writes later in a request"
    )
    build("plugins: [{type: spark}, {type: warm}]", registry=registry)


@pytest.mark.parametrize("datum", ["waiting", "lora", "session-id", "oddity"])
def test_undeclared_read_is_refused_by_plugin_and_datum(build, refused, registry, datum):
    (problem,) = refused(f"plugins: [{{type: peek, name: p, parameters: {{datum: {datum}}}}}]", registry=registry)
    assert str(problem) == (
        f"c.yaml:3:11: plugins[0]: plugin 'p' reads '{datum}' without declaring it: "
        "add it to `reads` or `may_read` of Peek"
    )
    build(f"plugins: [{{type: peek, parameters: {{datum: {datum}, declared: true}}}}]", registry=registry)


def test_filters_are_held_to_what_they_declare_too(refused, registry):
    (problem,) = refused("plugins: [{type: peeking-filter}]", registry=registry)
    assert "plugin 'peeking-filter' reads 'waiting' without declaring it" in problem.message


def test_clients_own_of_a_header_that_a_plugin_sets_does_not_reach_the_endpoint(build, registry):
    sent = Headers([("x-one", "1"), ("X-Two", "2"), ("x-three", "3"), ("x-prefiller-host-port", "4")])
    registry.register(made("heading", Scorer, sets_headers=("x-one", "x-two"), score=nothing))
    names = build("plugins: [{type: heading}]", registry=registry).pipeline.control_names(sent)
    assert names == ["x-one", "x-two", "x-prefiller-host-port"]
    assert build("plugins: []").pipeline.control_names(sent) == ["x-prefiller-host-port"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("x-gateway-destination-endpoint", "which the picker sets itself"),
        ("content-length", "which the picker sets itself"),
        ("X-One", "which is not a lower-case header name"),
        (":path", "which is not a lower-case header name"),
        ("", "which is not a lower-case header name"),
    ],
)
def test_header_that_no_plugin_can_set_is_refused(refused, registry, name, problem):
    registry.register(made("bad", Scorer, sets_headers=(name,), score=nothing))
    (found,) = refused("plugins: [{type: bad}]", registry=registry)
    said = f"plugin 'bad' sets header {name!r}, {problem}: change `sets_headers` of Bad"
    assert str(found) == f"c.yaml:3:11: plugins[0]: {said}"


WORKABLE = {
    "by-label": {"label": "zone", "validValues": ["a"]},
    "cluster-score": {"scoreName": "gpuClusterAvailable"},
    "endpoint-attribute-filter": {
        "attribute": "waiting",
        "algorithm": {"type": "threshold", "threshold": {"operator": "Equal", "value": 0}},
    },
    "endpoint-attribute-scorer": {"attributeKey": "waiting", "algorithm": {"type": "linear_lower_is_better"}},
    "header-label-affinity-scorer": {"headerName": "x-zone", "labelKey": "zone"},
    "placement-filter": {"placement": "default/llm", "onEmpty": "FailOpen"},
    "preference-order-scorer": {"preferenceOrder": [{"class": "h100"}]},
    "utilization-filter": {"conditions": [{"metric": "kv-cache-utilization", "maxValue": 0.9}]},
}
SESSIONS = {"strategy": "session_id", "sessionIdConfig": {"sources": [{"attribute": "session-id"}]}}
REGISTRY = Registry()
TRIED = (Admitter, Decider, Filter, Picker, Producer, Scorer)
SCHEDULING = [kind for kind in REGISTRY.types if issubclass(REGISTRY.find(kind), TRIED)]


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        *((kind, WORKABLE.get(kind, {})) for kind in SCHEDULING),
        ("session-affinity-filter", SESSIONS),
        ("session-affinity-scorer", SESSIONS),
        ("prefix-cache-scorer", {"prefixMatchInfoProducerName": "mine"}),
    ],
)
def test_gie_12_every_plugin_that_reads_for_a_request_declares_it(kind, parameters):
    plugin = REGISTRY.build(kind, parameters, name=kind, clock=ManualClock())
    assert rehearse(plugin) == Findings((), (), ())


@pytest.mark.parametrize("kind", [kind for kind in SCHEDULING if issubclass(REGISTRY.find(kind), (Filter, Scorer))])
def test_defect_11_asking_a_filter_or_scorer_changes_nothing(kind):
    plugin = REGISTRY.build(kind, WORKABLE.get(kind, {}), name=kind, clock=ManualClock())
    tags = [AcceleratorTag(model="h100", count=1), AcceleratorTag(model="t4", count=1)]
    pool = candidates(records={ACCELERATOR: tags}, waiting=[3, 0], kv_usage=[0.9, 0.1], in_flight=[2, 0])
    for column in pool.snapshot.columns.values():
        column.flags.writeable = False
    request = Request("r", RequestBody(model="m", prompt=b"x" * 4096, prompt_tokens=1024))
    ask = plugin.filter if isinstance(plugin, Filter) else plugin.score
    first = ask(request, pool).copy()
    assert [ask(request, pool).tolist() for _ in range(3)] == [first.tolist()] * 3
    assert pool.slots.tolist() == [0, 1]


def test_the_probe_offers_what_scorers_read():
    scorer = REGISTRY.build("token-load-scorer", {}, name="t", clock=ManualClock())
    scorer.reads = ()
    assert rehearse(scorer).undeclared == (IN_FLIGHT_TOKENS.name, PREFIX_MATCH.name)
    scorer = REGISTRY.build("topology-affinity-filter", {}, name="t", clock=ManualClock())
    assert TOPOLOGY in scorer.reads


MODULE = """
from epp.framework import Candidates, Floats, Request, Scorer
import numpy as np

class Mine(Scorer):
    plugin_type = "mine"

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return np.zeros(len(candidates))

class Stranger:
    pass
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A package that is importable for the time of a test."""
    package = tmp_path / "epp_test_outside"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "scorers.py").write_text(MODULE)
    (package / "broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    yield package.name
    for name in [name for name in sys.modules if name.startswith(package.name)]:
        del sys.modules[name]


def test_gie_12_class_is_refused_where_its_module_is_not_allowed_and_not_even_imported(refused, module):
    (problem,) = refused(f"plugins: [{{type: '{module}.scorers:Mine'}}]")
    assert problem.message == (
        f"plugin '{module}.scorers:Mine': plugin type '{module}.scorers:Mine' names a Python class, and module "
        f"'{module}.scorers' is not allowed: start with --allow-plugin-modules {module}.scorers"
    )
    assert module not in sys.modules


@pytest.mark.parametrize("allowed", ["epp_test_outside", "epp_test_outside.scorers"])
def test_gie_12_class_of_an_allowed_module_is_a_plugin_like_any_other(build, module, allowed):
    registry = Registry(modules=[allowed])
    assembly = build(f"plugins: [{{type: '{module}.scorers:Mine', name: m}}]", registry=registry)
    assert assembly.instances.by_name["m"].plugin_type == "mine"
    (profile,) = assembly.pipeline.scheduler.profiles.values()
    assert [one.scorer.name for one in profile.scorers] == ["m"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("scorers:Stranger", "is not a subclass of Plugin"),
        ("scorers:Nobody", "AttributeError: module 'epp_test_outside.scorers' has no attribute 'Nobody'"),
        ("scorers:", "cannot be loaded"),
        ("nowhere:Mine", "cannot be loaded: ModuleNotFoundError: No module named 'epp_test_outside.nowhere'"),
        ("broken:Mine", "cannot be loaded: ZeroDivisionError: division by zero (epp_test_outside/broken.py:"),
    ],
)
def test_class_that_cannot_be_used_is_refused(refused, module, name, problem):
    (found,) = refused(f"plugins: [{{type: '{module}.{name}'}}]", registry=Registry(modules=[module]))
    assert problem in found.message
    assert found.path == ("plugins", 0)
    assert found.position.line == 3


@pytest.mark.parametrize("kind", [":Mine", "epp_test_outsider:Mine", ".scorers:Mine"])
def test_allowing_a_module_allows_no_other(refused, module, kind):
    (problem,) = refused(f"plugins: [{{type: '{kind}'}}]", registry=Registry(modules=[module]))
    assert "is not allowed" in problem.message
