# SPDX-License-Identifier: Apache-2.0
"""Legs of requests: choice, order, and the headers for the decode endpoint."""

from functools import partial

import numpy as np
import pytest

from epp.framework import Candidates, Decider, Endpoint, PrefixMatch, Records, Request, RequestBody, Scorer, Snapshot
from epp.framework.errors import InternalError
from epp.framework.refusals import UnmetConstraintError
from epp.framework.request import PREFIX_MATCH
from epp.framework.testing import candidates
from epp.plugins.disaggregation_handlers import DisaggProfileHandler, PDProfileHandler, leg_headers
from epp.plugins.label_filters import LabelSelectorFilter, LabelSelectorParameters
from epp.plugins.profile_handlers import MaxScorePicker, PickerParameters
from epp.plugins.rollout import (
    AlwaysDisaggMultimodalDecider,
    AlwaysDisaggPDDecider,
    PrefixBasedPDDecider,
    PrefixBasedPDParameters,
)
from epp.routing.scheduling.profile import Profile, ProfileFilter, WeightedScorer
from epp.routing.scheduling.scheduler import Scheduler
from tests.support.plugins import built

ROLES = ("decode", "prefill", "encode")
DECODE, PREFILL = "e0", "e1"
ONE_OF_EACH = ROLES  # endpoints 10.0.0.1, .2 and .3, port 8000
LEGS = {"x-prefiller-host-port": "10.0.0.2:8000", "x-encoder-hosts-ports": "10.0.0.3:8000"}


class FixedDecider(Decider):
    """Gives a fixed answer, and records the decode endpoint of each call."""

    plugin_type = "fixed-decider"

    def __init__(self, *, answer: bool) -> None:
        super().__init__()
        self.answer = answer
        self.calls: list[str | None] = []

    def decide(self, request, decode):
        self.calls.append(decode and decode.targets[0].name)
        return self.answer


yes, no = partial(FixedDecider, answer=True), partial(FixedDecider, answer=False)


class Later(Scorer):
    """Prefers later slots; records the peer of each leg."""

    plugin_type = "later"

    def __init__(self) -> None:
        super().__init__()
        self.peers: list[str | None] = []

    def score(self, request, candidates):
        peer = candidates.peer
        self.peers.append(None if peer is None else candidates.snapshot.endpoints.values[peer].name)
        return candidates.slots / candidates.snapshot.capacity


def connected(cls, parameters, **deciders):
    """Return a handler as a configuration builds it, connected to these deciders."""
    handler = built(cls, parameters)
    handler.connect({parameter: deciders[name] for parameter, name in handler.references.items()})
    return handler


def disagg(parameters=None, **deciders):
    return connected(DisaggProfileHandler, parameters or {}, **deciders)


def both(**deciders):
    return disagg({"deciders": {"prefill": "p", "encode": "e"}}, **deciders)


def pool(*roles):
    return candidates(labels=[dict.fromkeys(several.split("+"), "yes") for several in roles])


def scheduler(handler, *, profiles=ROLES, targets=1, scorer=None):
    def profile(name):
        role = ProfileFilter(LabelSelectorFilter(LabelSelectorParameters(match_labels={name: "yes"})))
        picker = MaxScorePicker(PickerParameters(max_num_of_endpoints=targets))
        return Profile(name, (role,), (WeightedScorer(scorer or Later()),), picker)

    return Scheduler({name: profile(name) for name in profiles}, handler, handler)


def routed(handler, *roles, request=None, **kinds):
    return scheduler(handler, **kinds).schedule(request or Request("r"), pool(*roles))


def test_gie_2_decode_first_runs_decode_then_encode_then_prefill():
    handler = both(p=yes(), e=yes())
    calls = []
    results = {}
    while chosen := handler.pick_profiles(Request("r"), ROLES, results):
        calls.append(chosen)
        results[chosen[0]] = routed(disagg(), "decode").primary
    assert calls == [("decode",), ("encode",), ("prefill",)]


def test_legs_are_told_to_the_decode_endpoint():
    result = routed(both(p=yes(), e=yes()), *ONE_OF_EACH)
    assert (result.primary.profile, result.destination.addresses) == ("decode", ("10.0.0.1:8000",))
    assert result.destination.headers == LEGS


@pytest.mark.parametrize(
    ("encode", "prefill", "ran", "decision"),
    [
        (False, False, {"decode"}, "decode-only"),
        (False, True, {"decode", "prefill"}, "prefill-decode"),
        (True, False, {"decode", "encode"}, "encode-decode"),
        (True, True, {"decode", "encode", "prefill"}, "encode-prefill-decode"),
    ],
)
def test_optional_legs_run_when_their_decider_says_so_and_count_once_the_request_leaves(encode, prefill, ran, decision):
    deciders = {"p": FixedDecider(answer=prefill), "e": FixedDecider(answer=encode)}
    handler = both(**deciders)
    request = Request("r", RequestBody(model="m"))
    result = routed(handler, *ONE_OF_EACH, request=request)
    assert set(result.profiles) == ran
    assert deciders["p"].calls == deciders["e"].calls == ["e0"]  # once each, about the decode endpoint
    assert list(handler.samples) == []  # a run of the scheduler is no decision yet
    handler.pre_request(request, result)
    handler.pre_request(Request("r"), result)
    assert [(each.labels, each.value) for each in handler.samples] == [(("m", decision), 1), (("unknown", decision), 1)]


def test_invented_models_share_a_count():
    handler = disagg()
    result = routed(handler, "decode")
    for number in range(1000):
        handler.pre_request(Request("r", RequestBody(model=f"m{number}" + "x" * 500)), result)
    models = {model: each.value for each in handler.samples for model, _ in [each.labels]}
    assert len(models) == 101
    assert max(map(len, models)) <= 128
    assert models["other"] == 900


def test_without_deciders_there_is_only_a_decode_leg():
    result = routed(disagg(), *ONE_OF_EACH)
    assert set(result.profiles) == {"decode"}
    assert result.destination.headers == {}


def test_stage_whose_profile_does_not_exist_is_skipped_and_no_decider_asked():
    deciders = {"p": yes(), "e": yes()}
    result = routed(both(**deciders), *ONE_OF_EACH, profiles=("decode", "prefill"))
    assert set(result.profiles) == {"decode", "prefill"}
    assert deciders["e"].calls == []


def test_decode_profile_that_does_not_exist_is_named():
    with pytest.raises(InternalError, match=r"chose \['decode'\], which are not among the profiles \['prefill'\]"):
        routed(disagg(), "prefill", profiles=("prefill",))


def test_profiles_and_stages_that_do_not_meet_are_warned_of():
    deciders = {"p": yes(), "e": yes()}
    assert both(**deciders).check_profiles(("decode", "prefill", "encode")) == []
    assert both(**deciders).check_profiles(("decode", "prefil", "encode")) == [
        "profile 'prefill' does not exist: its stage is skipped",
        "profile 'prefil' is never run: no stage uses it",
    ]
    assert disagg().check_profiles(("decode", "prefill")) == ["profile 'prefill' is never run: no stage uses it"]
    with pytest.raises(ValueError, match="the decode stage: profile 'decode' does not exist; profiles are prefill"):
        both(**deciders).check_profiles(("prefill",))


def test_gie_7_optional_leg_that_finds_no_endpoint_is_left_out():
    result = routed(both(p=yes(), e=yes()), "decode", "encode")
    assert result.destination.addresses == ("10.0.0.1:8000",)
    assert result.destination.headers == {"x-encoder-hosts-ports": "10.0.0.2:8000"}
    assert result.profiles["prefill"] is None
    assert isinstance(result.errors["prefill"], UnmetConstraintError)


@pytest.mark.parametrize("order", ["decode-first", "prefill-first"])
def test_decode_leg_that_finds_no_endpoint_fails_the_request(order):
    handler = disagg({"stageOrder": order})
    with pytest.raises(UnmetConstraintError):
        routed(handler, "prefill", "encode")


def test_no_decider_is_asked_after_a_decode_leg_that_failed():
    deciders = {"p": yes(), "e": yes()}
    assert both(**deciders).pick_profiles(Request("r"), ROLES, {"decode": None}) == ()
    assert deciders["p"].calls == deciders["e"].calls == []


def test_prefill_first_runs_prefill_then_encode_then_decode():
    encode = yes()
    handler = disagg({"stageOrder": "prefill-first", "deciders": {"encode": "e"}}, e=encode)
    result = routed(handler, *ONE_OF_EACH)
    assert list(result.profiles) == ["prefill", "encode", "decode"]
    assert encode.calls == [None]  # there is no decode endpoint yet
    assert result.destination.addresses == ("10.0.0.1:8000",)
    assert result.destination.headers == LEGS


def test_prefill_first_goes_on_without_prefillers():
    handler = disagg({"stageOrder": "prefill-first"})
    assert routed(handler, "decode").destination.headers == {}
    assert set(routed(handler, "decode", profiles=("decode",)).profiles) == {"decode"}


def test_first_leg_chosen_is_the_peer_of_those_that_follow():
    near, prefill_first = Later(), Later()
    routed(both(p=yes(), e=yes()), *ONE_OF_EACH, scorer=near)
    routed(disagg({"stageOrder": "prefill-first"}), *ONE_OF_EACH, scorer=prefill_first)
    assert near.peers == [None, DECODE, DECODE]
    assert prefill_first.peers == [None, PREFILL]


def test_first_leg_that_failed_is_no_peer():
    near = Later()
    handler = disagg({"stageOrder": "prefill-first", "deciders": {"encode": "e"}}, e=yes())
    routed(handler, "encode", "decode", scorer=near)
    assert near.peers == [None, "e0"]  # the scorers of prefill never ran


def test_prefill_header_names_one_endpoint_and_encode_header_all_that_were_picked():
    handler = both(p=yes(), e=yes())
    result = routed(handler, "decode", "prefill", "prefill", "encode", "encode", targets=2)
    assert result.destination.headers == {  # later ones first
        "x-prefiller-host-port": "10.0.0.3:8000",
        "x-encoder-hosts-ports": "10.0.0.5:8000,10.0.0.4:8000",
    }


def test_decode_endpoint_that_prefills_too_is_not_told_to_call_itself():
    result = routed(both(p=yes(), e=no()), "decode+prefill")
    assert result.profiles["prefill"] is not None
    assert result.destination.headers == {}


def test_decode_endpoint_is_left_out_of_the_encoders(sent_to):
    everyone = candidates(waiting=[0, 0, 0])
    decode = sent_to(everyone, 0).primary
    own_second, own_first = sent_to(everyone, 1, 0, 2).primary, sent_to(everyone, 0, 1).primary
    assert leg_headers(decode, own_second, own_second) == {
        "x-prefiller-host-port": "10.0.0.2:8000",
        "x-encoder-hosts-ports": "10.0.0.2:8000,10.0.0.3:8000",
    }
    # the prompt is best computed right there; but media are encoded by all of the encoders
    assert leg_headers(decode, own_first, own_first) == {"x-encoder-hosts-ports": "10.0.0.2:8000"}
    assert leg_headers(decode, decode, decode) == {}


def test_ipv6_legs_are_in_brackets(sent_to):
    endpoints = (Endpoint("four", "10.0.0.1", 8000), Endpoint("six", "fd00::6", 8000))
    everyone = Candidates(Snapshot(endpoints=Records(endpoints)), np.arange(2))
    headers = leg_headers(sent_to(everyone, 0).primary, sent_to(everyone, 1).primary)
    assert headers == {"x-prefiller-host-port": "[fd00::6]:8000"}


def test_profiles_can_have_other_names():
    parameters = {"profiles": {"decode": "d", "prefill": "p"}, "deciders": {"prefill": "always"}}
    result = routed(disagg(parameters, always=AlwaysDisaggPDDecider()), "d", "p", profiles=("d", "p"))
    assert result.primary.profile == "d"
    assert result.destination.headers == {"x-prefiller-host-port": "10.0.0.2:8000"}


def test_genuine_deciders_decide_by_prompt_and_cache():
    uncached = PrefixBasedPDDecider(PrefixBasedPDParameters(non_cached_tokens=100))
    handler = both(p=uncached, e=AlwaysDisaggMultimodalDecider())

    def ran(*, held_blocks, media_items=0):
        request = Request("r", RequestBody(prompt_tokens=160, media_items=media_items))
        request.put(PREFIX_MATCH, PrefixMatch(np.array([held_blocks, 0, 0], dtype=np.int32), 10, 16))
        return set(routed(handler, *ONE_OF_EACH, request=request).profiles)

    assert ran(held_blocks=0) == {"decode", "prefill"}  # 160 uncached
    assert ran(held_blocks=4) == {"decode"}  # 160 - 4 * 16 = 96 uncached
    assert ran(held_blocks=4, media_items=1) == {"decode", "encode"}


def test_deciders_are_referred_to_by_the_parameters_that_name_them():
    assert both(p=yes(), e=yes()).references == {"deciders.prefill": "p", "deciders.encode": "e"}
    assert disagg().references == {}


def test_decider_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"deciders.prefill: plugin 'later' \(type later\) is not a Decider"):
        disagg({"deciders": {"prefill": "p"}}, p=Later())


def test_former_flat_names_still_work_and_are_warned_of():
    flat = {
        "decodeProfile": "d",
        "prefillProfile": "p",
        "encodeProfile": "x",
        "deciderPluginName": "p",
        "encodeDeciderPluginName": "e",
        "primaryPort": 8000,
    }
    handler = disagg(flat, p=yes(), e=no())
    assert set(routed(handler, "d", "p", "x", profiles=("d", "p", "x")).profiles) == {"d", "p"}
    assert list(handler.warnings) == [
        "decodeProfile is deprecated: use profiles.decode",
        "prefillProfile is deprecated: use profiles.prefill",
        "encodeProfile is deprecated: use profiles.encode",
        "deciderPluginName is deprecated: use deciders.prefill",
        "encodeDeciderPluginName is deprecated: use deciders.encode",
        "primaryPort is deprecated and not used: remove it",
    ]
    assert not both(p=yes(), e=yes()).warnings


def pd(parameters=None, **deciders):
    deciders = {name.replace("_", "-"): decider for name, decider in deciders.items()}
    return connected(PDProfileHandler, parameters or {}, **deciders)


def test_pd_handler_runs_decode_then_prefill_if_its_decider_says_so():
    headers = routed(pd(prefix_based_pd_decider=yes()), *ONE_OF_EACH).destination.headers
    assert headers == {"x-prefiller-host-port": "10.0.0.2:8000"}
    assert routed(pd(prefix_based_pd_decider=no()), *ONE_OF_EACH).destination.headers == {}


def test_pd_handler_can_hide_ranks_behind_a_primary_port():
    handler = pd({"deciderPluginName": "d", "primaryPort": 9000}, d=yes())
    result = routed(handler, *ONE_OF_EACH)
    assert result.destination.addresses == ("10.0.0.1:9000",)
    assert result.destination.headers == {
        "x-prefiller-host-port": "10.0.0.2:8000",
        "x-data-parallel-host-port": "10.0.0.1:8000",
    }


def test_pd_handler_says_what_it_does_not_use():
    handler = pd({"prefixPluginName": "prefix-cache-scorer"}, prefix_based_pd_decider=yes())
    assert list(handler.warnings) == ["prefixPluginName is not used: remove it"]
