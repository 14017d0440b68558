# SPDX-License-Identifier: Apache-2.0
"""Endpoints of several legs chosen together."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Candidates, Endpoint, Floats, ProfileResult, Records, Request, Scorer, Snapshot, Topology
from epp.framework.accelerators.tag import AcceleratorTag, Device
from epp.framework.refusals import UnmetConstraintError
from epp.framework.result import ScoreTrace
from epp.framework.snapshot import ACCELERATOR, TOPOLOGY
from epp.framework.testing import candidates
from epp.plugins.disaggregation_handlers import DisaggParameters, DisaggProfileHandler, StageDeciders
from epp.plugins.joint_aggregator import JointAggregator, LocalityBands
from epp.plugins.label_filters import LabelSelectorFilter, LabelSelectorParameters
from epp.plugins.profile_handlers import MaxScorePicker, RandomPicker
from epp.plugins.rollout import AlwaysDisaggPDDecider
from epp.routing.scheduling.profile import Profile, ProfileFilter, WeightedScorer
from epp.routing.scheduling.scheduler import Scheduler
from tests.support.plugins import built


class BySlot(Scorer):
    """Gives a fixed score to each slot."""

    plugin_type = "by-slot"

    def __init__(self, *scores: float) -> None:
        super().__init__()
        self.scores = np.array(scores)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return self.scores[candidates.slots]


def joint(**parameters):
    return built(JointAggregator, parameters)


# slot: prefill P1, P2, decode D1, D2; P1 and D2 are in one zone, P2 and D1 in another
ROLES = [{"prefill": "yes"}, {"prefill": "yes"}, {"decode": "yes"}, {"decode": "yes"}]
ZONES = [Topology(zone=zone) for zone in ("z1", "z2", "z2", "z1")]
SCORES = (0.90, 0.85, 0.88, 0.70)
P1, P2, D1, D2 = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.4:8000"


def routed(
    aggregator, *, zones=ZONES, scores=SCORES, weight=1.0, targets=1, picker=MaxScorePicker, labels=ROLES, tags=()
):
    """Schedule a request; return its decode and prefill endpoints."""
    handler = DisaggProfileHandler(DisaggParameters(deciders=StageDeciders(prefill="always")))
    handler.connect({"deciders.prefill": AlwaysDisaggPDDecider()})

    def profile(name):
        role = ProfileFilter(LabelSelectorFilter(LabelSelectorParameters(match_labels={name: "yes"})))
        scorers = (WeightedScorer(BySlot(*scores), weight),)
        return Profile(name, (role,), scorers, picker(picker.parameters_type(max_num_of_endpoints=targets)))

    scheduler = Scheduler({name: profile(name) for name in ("decode", "prefill")}, handler, aggregator)
    result = scheduler.schedule(Request("r"), candidates(labels=labels, accelerators=tags, records={TOPOLOGY: zones}))
    return ",".join(result.destination.addresses), result.destination.headers.get("x-prefiller-host-port")


NEAR = {"localityWeight": 0.5, "locality": {"zone": 0.6}}  # 0.3 for a shared zone


@pytest.mark.parametrize(
    ("parameters", "scores", "chosen"),
    [
        # P2+D1 0.85 + 0.88 + 0.3 = 2.03    P1+D2 0.90 + 0.70 + 0.3 = 1.90    P1+D1 1.78    P2+D2 0.85 + 0.70 = 1.55
        (NEAR, SCORES, (D1, P2)),
        (NEAR, (0.90, 0.85, 0.72, 0.70), (D2, P1)),  # P2+D1 0.85 + 0.72 + 0.3 = 1.87 < 1.90
        (NEAR, (0.90, 0.70, 0.88, 0.70), (D2, P1)),  # 1.90 > P2+D1 1.88 > 1.78
        (NEAR, (0.90, 0.0, 0.88, 0.0), (D1, P1)),  # 1.78 > 1.20 > 1.18
        (NEAR, (0.0, 0.85, 0.0, 0.70), (D2, P2)),  # 1.55 > 1.15 > 1.00
        ({"localityWeight": 0.5}, SCORES, (D1, P1)),  # 0.025 for a zone: P1+D1 1.78 > P2+D1 1.755
    ],
    ids=["second best wins", "decode is reconsidered", "P1+D2", "P1+D1", "P2+D2", "small gain"],
)
def test_gie_8_best_sum_of_scores_and_nearness_wins(parameters, scores, chosen):
    assert routed(joint(**parameters), scores=scores) == chosen


@pytest.mark.parametrize("band", ["host", "rack", "zone", "region", "cluster"])
def test_gie_8_value_of_each_band_can_be_set(band):
    # with the vectors' places on another level:  P2+D1 2.03 > P1+D2 1.90 > P1+D1 1.78 at 0.6, P1+D1 first at 0.05
    places = [Topology(**{band: name}) for name in ("z1", "z2", "z2", "z1")]
    assert routed(joint(localityWeight=0.5, locality={band: 0.6}), zones=places) == (D1, P2)
    assert routed(joint(localityWeight=0.5, locality={band: 0.05}), zones=places) == (D1, P1)


NOWHERE = [Topology()] * 4


def device(node="", root="", clique=""):
    return AcceleratorTag(
        node=node, devices=(Device(id=f"{node}{root}{clique}", node=node, pcie_root=root, clique=clique),)
    )


ROOTS = [device("n", root=name) for name in "xyyx"]
CLIQUES = [device(f"n-{i}", clique=name) for i, name in enumerate("xyyx")]


@pytest.mark.parametrize(("band", "tags"), [("pcieRoot", ROOTS), ("clique", CLIQUES)])
def test_dra_5_devices_close_to_each_other_are_paired(band, tags):
    assert routed(joint(localityWeight=0.5, locality={band: 0.6}), zones=NOWHERE, tags=tags) == (D1, P2)
    assert routed(joint(localityWeight=0.5, locality={band: 0.05}), zones=NOWHERE, tags=tags) == (D1, P1)


def test_dra_5_roots_of_different_nodes_are_not_shared():
    tags = [device(f"n-{i}", root=name) for i, name in enumerate("xyyx")]
    assert routed(joint(localityWeight=9), zones=NOWHERE, tags=tags) == (D1, P1)


# one zone for all: 0.6, or 0.9 for the pair of one clique, and 1.73 + 0.45 > 1.78 + 0.3
@pytest.mark.parametrize(("clique", "chosen"), [(0.9, (D1, P2)), (0.1, (D1, P1))])
def test_dra_5_higher_value_of_place_and_device_counts(clique, chosen):
    near = joint(localityWeight=0.5, locality={"zone": 0.6, "clique": clique})
    assert routed(near, zones=[Topology(zone="z")] * 4, tags=CLIQUES) == chosen


def test_gie_8_with_one_candidate_each_even_a_random_pick_stands():
    pool = candidates(labels=ROLES, records={TOPOLOGY: ZONES})
    results = {"decode": leg(pool, "decode", [2, 3], [1.0, 0.0], own=[1]), "prefill": leg(pool, "prefill", [0, 1])}
    assert chosen_by(joint(topK=1), results)["decode"] == 1


@pytest.mark.parametrize(
    ("parameters", "scene", "chosen"),
    [
        # ten times the weight gives ten times the totals and the same shares: the zone still decides
        (NEAR, {"weight": 10.0}, (D1, P2)),
        # P2+D1 7 * 0.85 + 0.88 + 0.3 = 7.13    P1+D1 7 * 0.90 + 0.88 = 7.18    P1+D2 7 * 0.90 + 0.70 + 0.3 = 7.30
        (NEAR | {"weights": {"prefill": 7}}, {}, (D2, P1)),
        ({"localityWeight": 100}, {"zones": NOWHERE}, (D1, P1)),  # unknown places are not near
        (NEAR, {"targets": 2}, (f"{D1},{D2}", P2)),  # fallbacks stay behind the joint choice
        ({"topK": 1, "localityWeight": 100}, {}, (D1, P1)),
        ({"localityWeight": 0}, {"picker": RandomPicker, "scores": (1.0, 0.0, 1.0, 0.0)}, (D1, P1)),
    ],
    ids=["shares of the totals", "weight of a stage", "unknown places", "fallbacks", "one candidate", "random picks"],
)
def test_gie_8_weights_places_and_limits_decide(parameters, scene, chosen):
    assert routed(joint(**parameters), **scene) == chosen


def kinds(*values, key="llm-d.ai/accelerator"):
    """Return the labels of the endpoints with their accelerators; empty for no label."""
    return [role | ({key: value} if value else {}) for role, value in zip(ROLES, values, strict=True)]


def paired(labels=ROLES, tags=(), **pairing):
    return routed(joint(localityWeight=0, pairing=pairing), labels=labels, tags=tags, zones=NOWHERE)


MIXED = ("amd-mi300x", "nvidia-h100", "nvidia-a100", "amd-mi250")
CLASSES = [AcceleratorTag(classes=(name,)) for name in MIXED]
NVIDIA, AMD = ({"from": f"{vendor}-*", "to": f"{vendor}-*", "value": 0.95} for vendor in ("nvidia", "amd"))
BACKWARDS = {"from": "l4", "to": "h100", "value": 1}  # decode to prefill
FOUR = kinds("a100", "h100", "l4", "t4")


@pytest.mark.parametrize(
    ("labels", "pairing", "chosen"),
    [
        # P2+D1 0.85 + 0.88 + 1 against P1+D1 1.78
        (kinds("a100", "h100", "h100", "mi300x"), {}, (D1, P2)),
        # without rules the best win; D2 costs too much to be worth 1 - 0.95 more
        (kinds(*MIXED), {}, (D1, P1)),
        # P2+D1 0.85 + 0.88 + 0.95 = 2.68    P1+D2 0.90 + 0.70 + 1 = 2.60    P1+D1 1.78
        (kinds(*MIXED), {"rules": [NVIDIA, AMD | {"value": 1}]}, (D1, P2)),
        # the first rule that matches decides, even over equal kinds
        # P1+D1 1.78    P2+D1 1.73    P1+D2 0.90 + 0.70 + 1 = 2.60
        (
            kinds("a100", "h100", "h100", "a100"),
            {"rules": [{"from": "h100", "to": "h100", "value": 0}, {"from": "h*", "to": "h*", "value": 1}]},
            (D2, P1),
        ),
        # a rule applies in both directions by default
        (FOUR, {"rules": [BACKWARDS]}, (D1, P2)),
        (FOUR, {"rules": [BACKWARDS | {"ordered": True}]}, (D1, P1)),
        (FOUR, {"rules": [{"from": "h100", "to": "l4", "value": 1, "ordered": True}]}, (D1, P2)),
        (FOUR, {"rules": [{"from": "H*", "to": "l4", "value": 1}]}, (D1, P1)),  # of another case
        # an unknown kind is between the same and another
        (kinds("", "h100", "h100", ""), {}, (D1, P2)),  # P1+D1 0.90 + 0.88 + 0.5 = 2.28    P2+D1 0.85 + 0.88 + 1
        (kinds("a100", "", "h100", "h200"), {}, (D1, P2)),  # P1+D1 1.78 + 0    P2+D1 1.73 + 0.5
        (kinds("a100", "", "h100", "h200"), {"unknown": 0}, (D1, P1)),
        # another label can name the kind
        (kinds("a100", "h100", "h100", "l4", key="gpu"), {}, (D1, P1)),
        (kinds("a100", "h100", "h100", "l4", key="gpu"), {"labelKey": "gpu"}, (D1, P2)),
    ],
)
def test_kinds_of_accelerators_are_paired_by_labels(labels, pairing, chosen):
    assert paired(labels, **pairing) == chosen


def test_gie_8_accelerators_without_a_label_are_known_by_class_or_model():
    models = ("a100", "h100", "h100", "mi300x")
    assert paired(tags=[AcceleratorTag(model=model) for model in models]) == (D1, P2)
    assert paired(tags=[AcceleratorTag(model="m", classes=(name,)) for name in models]) == (D1, P2)
    same = [AcceleratorTag(model="h100")] * 4
    assert paired(kinds("a", "b", "b", "c"), same) == (D1, P2)  # a label comes first


def test_gie_8_classes_are_paired_by_rules():
    assert paired(tags=CLASSES) == (D1, P1)
    assert paired(tags=CLASSES, rules=[NVIDIA]) == (D1, P2)


@pytest.mark.parametrize("by", ["vendor", "family"])
def test_gie_8_kind_may_be_the_vendor_or_the_family(by):
    tags = [AcceleratorTag(model=str(i), **{by: name}) for i, name in enumerate(("amd", "nvidia", "nvidia", "amd"))]
    assert paired(tags=tags) == (D1, P1)  # no two of one model
    assert paired(tags=tags, by=by) == (D1, P2)


def test_gie_8_tags_are_required_where_the_kind_is_only_in_them():
    assert ACCELERATOR in joint(pairing={"by": "vendor"}).reads
    assert ACCELERATOR in joint().may_read
    assert ACCELERATOR not in joint(pairing={"by": "vendor"}, pairingWeight=0).reads


def test_work_taken_off_the_decode_endpoint_is_not_given_back_for_nearness():
    anybody = [{"prefill": "yes", "decode": "yes"}] * 2
    racks = [Topology(host="h1", rack="r1"), Topology(host="h2", rack="r1")]
    # both legs on slot 0: 0.90 + 0.90 = 1.80; slots 0 and 1: 0.90 + 0.85 + 0.2 = 1.95, decode on its best
    # (no accelerator is known, so every two endpoints gain the same 0.5)
    scene = {"labels": anybody, "zones": racks, "scores": (0.90, 0.85)}
    assert routed(joint(), **scene) == (P1, P2)
    assert routed(joint(locality={"rack": 0}, pairingWeight=0), **scene) == (P1, None)


def leg(pool, profile, slots, totals=None, *, own=(0,)):
    """Return the result of a profile over these slots; the totals are those of one scorer of weight 1."""
    among = Candidates(pool.snapshot, np.array(slots, dtype=np.intp))
    numbers = np.zeros(len(slots)) if totals is None else np.array(totals)
    return ProfileResult(profile, among, numbers, np.array(own), scores=(ScoreTrace("s", 1.0, numbers),))


def chosen_by(aggregator, results, **request):
    """Return the positions of the endpoints picked."""
    repicked = aggregator.aggregate(Request("r", **request), results).repicked
    return {name: int(repicked[name].picked[0]) for name in results}


def test_encode_and_prefill_may_well_share_an_endpoint():
    pool = candidates(waiting=[0] * 3)
    results = {
        "decode": leg(pool, "decode", [0]),
        "prefill": leg(pool, "prefill", [1], [1.0]),
        "encode": leg(pool, "encode", [2, 1], [0.9, 0.5]),
    }
    # unknown accelerators 0.5 each pair; encode on 2: 0.9 + 3 * 0.5 = 2.4; on 1: 0.5 + 2 * 0.5 + (1 + 1) = 3.5
    verdict = joint().aggregate(Request("r"), results)
    assert verdict.headers == {"x-prefiller-host-port": P2, "x-encoder-hosts-ports": P2}


def test_three_legs_are_weighed_two_by_two():
    places = [Topology(zone=zone) for zone in ("z1", "z1", "z2", "z1", "z2")]
    pool = candidates(waiting=[0] * 5, records={TOPOLOGY: places})
    results = {
        "decode": leg(pool, "decode", [0], [1.0]),
        "prefill": leg(pool, "prefill", [2, 1], [1.0, 0.9]),
        "encode": leg(pool, "encode", [4, 3], [1.0, 0.9]),
    }
    # 0.06 for each two in one zone: none moves 3.0 + 0.06 (2 with 4), one moves 2.9 + 0.06, both 2.8 + 3 * 0.06 = 2.98
    assert chosen_by(joint(locality={"zone": 0.06}), results) == {"decode": 0, "prefill": 0, "encode": 0}
    # 0.15 each: none 3.0 + 0.15 = 3.15, both 2.8 + 0.45 = 3.25
    assert chosen_by(joint(locality={"zone": 0.15}), results) == {"decode": 0, "prefill": 1, "encode": 1}


def test_leg_that_is_alone_keeps_its_own_pick():
    pool = candidates(waiting=[0, 0])
    result = leg(pool, "decode", [0, 1], [0.0, 1.0], own=[0])
    assert joint().aggregate(Request("r"), {"decode": result, "prefill": None}).primary is result


def test_without_a_decode_profile_the_first_result_counts(sent_to):
    result = sent_to(candidates(waiting=[0]), 0).primary
    assert joint().aggregate(Request("r"), {"a": None, "b": result}).primary is result
    assert joint().aggregate(Request("r"), {"a": None}) is None


def test_decode_leg_that_failed_fails_the_request():
    with pytest.raises(UnmetConstraintError):
        routed(joint(), labels=[{"prefill": "yes"}] * 4)
    pool = candidates(waiting=[0])
    assert joint().aggregate(Request("r"), {"decode": None, "prefill": leg(pool, "prefill", [0])}) is None


def test_of_equal_combinations_the_profiles_own_choices_win():
    pool = candidates(waiting=[0] * 8)
    results = {
        "decode": leg(pool, "decode", [0, 1, 2, 3], own=[2]),
        "prefill": leg(pool, "prefill", [4, 5, 6], own=[1]),
    }
    assert chosen_by(joint(), results) == {"decode": 2, "prefill": 1}


def test_equals_that_are_looked_at_take_turns():
    places = [Topology(zone="here")] + [Topology(zone="far")] * 3 + [Topology(zone="here")] * 12
    pool = candidates(waiting=[0] * 16, records={TOPOLOGY: places})
    results = {"decode": leg(pool, "decode", [0]), "prefill": leg(pool, "prefill", list(range(1, 16)), own=[0])}
    first, again = ([chosen_by(joint(), results, seed=seed)["prefill"] for seed in range(100)] for _ in range(2))
    assert len(set(first)) > 6  # of the 12 that are near
    assert first == again


def test_least_recently_picked_of_equals_is_looked_at_first():
    places = [Topology(zone="here"), Topology(zone="far")] + [Topology(zone="here")] * 3
    pool = candidates(last_picked=[0, 0, 9, 3, 7], records={TOPOLOGY: places})
    results = {"decode": leg(pool, "decode", [0]), "prefill": leg(pool, "prefill", [1, 2, 3, 4], own=[0])}
    assert chosen_by(joint(topK=2), results)["prefill"] == 2  # slot 3


@pytest.mark.parametrize(
    ("one", "other", "value"),
    [
        (Topology("h", "r", "z", "g"), Topology("h", "r", "z", "g"), 1.0),
        (Topology("h1", "r", "z", "g"), Topology("h2", "r", "z", "g"), 0.2),
        (Topology("h1", "r1", "z", "g"), Topology("h2", "r2", "z", "g"), 0.05),
        (Topology("h1", "r1", "z1", "g"), Topology("h2", "r2", "z2", "g"), 0.02),
        (Topology("h1", "r1", "z1", "g1"), Topology("h2", "r2", "z2", "g2"), 0.0),
        (Topology("h1", "r1", "z1", "g1", "c"), Topology("h2", "r2", "z2", "g2", "c"), 0.01),
        (Topology(cluster="c1"), Topology(cluster="c2"), 0.0),
        (Topology(zone="z"), Topology(zone="z"), 0.05),
        (Topology(), Topology(), 0.0),
    ],
)
def test_narrowest_place_shared_counts(one, other, value):
    assert LocalityBands().between(one, other) == value
    assert LocalityBands().between(other, one) == value


def test_topology_is_read_where_it_counts():
    assert joint().reads == (TOPOLOGY,)
    assert joint(localityWeight=0).reads == ()


@st.composite
def legs(draw):
    """A pool with places and accelerators, and the results of two or three legs over it, best picked first."""
    count = draw(st.integers(1, 7))
    name = st.sampled_from(["", "a", "b"])
    places = [Topology(draw(name), draw(name), draw(name), draw(name)) for _ in range(count)]
    labels = [{"llm-d.ai/accelerator": draw(name)} for _ in range(count)]
    pool = candidates(labels=labels, records={TOPOLOGY: places})
    results = {}
    for profile in draw(st.sampled_from([("decode", "prefill"), ("decode", "prefill", "encode")])):
        slots = sorted(draw(st.sets(st.integers(0, count - 1), min_size=1)))
        totals = [draw(st.integers(0, 100)) / 100 for _ in slots]
        results[profile] = leg(pool, profile, slots, totals, own=[int(np.argmax(totals))])
    return results


def objective(results, chosen):
    """Return the value of a combination of positions with all weights 1, by the definition."""
    value = sum(results[name].totals[position] for name, position in chosen.items())
    bands = {"host": 1.0, "rack": 0.2, "zone": 0.05, "region": 0.02}
    for one, other in (("decode", "prefill"), ("decode", "encode"), ("prefill", "encode")):
        if one not in chosen or other not in chosen:
            continue
        a, b = (int(results[name].candidates.slots[chosen[name]]) for name in (one, other))
        if a == b:
            value += 0.0 if one == "decode" else 2.0
            continue
        places = results[one].candidates.snapshot.records(TOPOLOGY).values
        shared = [bands[level] for level in bands if getattr(places[a], level) == getattr(places[b], level) != ""]
        value += max(shared, default=0.0)
        endpoints = results[one].candidates.snapshot.endpoints.values
        ours, theirs = (endpoints[slot].labels["llm-d.ai/accelerator"] for slot in (a, b))
        value += 0.5 if "" in (ours, theirs) else float(ours == theirs)
    return value


@given(legs())
def test_gie_8_joint_choice_is_the_best_there_is_and_never_worse_than_independent_ones(results):
    best = max(
        objective(results, dict(zip(results, positions, strict=True)))
        for positions in product(*(range(len(result.candidates)) for result in results.values()))
    )
    value = objective(results, chosen_by(joint(topK=8), results))  # 8 is more than there are
    assert value == pytest.approx(best)
    own = {name: int(result.picked[0]) for name, result in results.items()}
    assert objective(results, chosen_by(joint(topK=2), results)) >= objective(results, own) - 1e-9
    assert chosen_by(joint(topK=1), results) == own


@given(legs(), st.integers(1, 8))
def test_gie_8_only_the_highest_totals_are_looked_at(results, count):
    for name, position in chosen_by(joint(topK=count), results).items():
        assert (results[name].totals > results[name].totals[position]).sum() < count


def test_thousand_candidates_are_narrowed_before_anything_is_combined():
    endpoints = tuple(Endpoint(f"e{i}", "10.0.0.1", i + 1) for i in range(1000))
    pool = Candidates(Snapshot(endpoints=Records(endpoints)), np.arange(1000))
    totals = np.linspace(0.0, 1.0, 1000)
    results = {name: leg(pool, name, range(1000), totals, own=[999]) for name in ("decode", "prefill", "encode")}
    assert min(chosen_by(joint(), results).values()) >= 996
