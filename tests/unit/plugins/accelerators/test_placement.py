# SPDX-License-Identifier: Apache-2.0
"""Endpoints that the GPU filters of a placement template keep."""

from epp.framework import Request
from epp.framework.accelerators.arrays import PLACEMENT, EndpointPlacement, PlacementTemplate
from epp.framework.accelerators.tag import AcceleratorTag, Device
from epp.framework.snapshot import ACCELERATOR, NODE_LABELS
from epp.framework.testing import candidates
from epp.plugins.accelerators.placement import PlacementTemplateFilter
from tests.support.plugins import built

TEMPLATES = {
    each.name: each
    for each in (
        PlacementTemplate(name="few", most_connections=3),
        PlacementTemplate(name="zone", zone_label="zone"),
        PlacementTemplate(name="rack", zone_label="rack"),
        PlacementTemplate(name="remote", allow_local_gpu=False),
    )
}


def build(**parameters):
    return built(PlacementTemplateFilter, parameters)


def kept(own, *, peer=None, local=(), nodes=None, devices=None, parameters=None, **columns):
    records = {
        PLACEMENT: [
            EndpointPlacement(own=name, templates=TEMPLATES, is_local=i in local) for i, name in enumerate(own)
        ],
        NODE_LABELS: nodes or [{}] * len(own),
        ACCELERATOR: [AcceleratorTag(devices=(Device(id=name),)) for name in devices or map(str, range(len(own)))],
    }
    pool = candidates(records=records, **columns).within("p", peer)
    return build(**parameters or {}).filter(Request("r"), pool).tolist()


def test_tf_1_gpu_with_too_many_connections_gets_no_more():
    # two endpoints share g, with 1 + 2 requests; the last one has no template
    own, devices = ["few", "few", "few", ""], ["g", "g", "h", "i"]
    assert kept(own, devices=devices, in_flight=[1, 2, 2, 9]) == [False, False, True, True]


def test_tf_1_all_legs_are_in_one_zone():
    nodes = [{"zone": "z1"}, {"zone": "z1"}, {"zone": "z2"}, {}, {"zone": "z2"}]
    own = ["zone"] * 4 + [""]
    assert kept(own, peer=0, nodes=nodes) == [True, True, False, True, True]
    assert kept(own, peer=None, nodes=nodes) == [True] * 5  # the first leg is free to choose
    assert kept(own, peer=3, nodes=nodes) == [True] * 5  # the peer's zone is unknown


def test_tf_1_each_template_has_its_own_label():
    nodes = [{"zone": "z1", "rack": "r1"}, {"zone": "z2", "rack": "r1"}, {"zone": "z1", "rack": "r2"}]
    assert kept(["zone", "zone", "rack"], peer=0, nodes=nodes) == [True, False, False]
    assert kept(["zone", "rack", "zone"], peer=0, nodes=nodes) == [True, True, True]


def test_tf_1_local_gpus_may_be_forbidden():
    assert kept(["remote", "remote", "few"], local={0, 2}) == [False, True, True]


def test_tf_1_named_template_counts_for_all():
    named = {"template": "few"}
    assert kept(["", "remote"], local={1}, parameters=named, in_flight=[3, 2]) == [False, True]
    assert kept(["few"], parameters={"template": "lost"}, in_flight=[3]) == [True]
