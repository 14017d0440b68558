# SPDX-License-Identifier: Apache-2.0
"""Endpoints in files of Envoy's EDS."""

import json
import re
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from epp.framework.clock import ManualClock
from epp.pool.discovery.endpoints_file import FileDiscovery, FileDiscoveryParameters, parse_targets_file
from epp.pool.discovery.targets import Target
from epp.routing.datastore import Datastore

TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
YAML = f"""
version_info: "7"
resources:
- "@type": {TYPE}
  cluster_name: llm
  endpoints:
  - locality: {{region: r1, zone: z1, sub_zone: s1}}
    load_balancing_weight: 3
    priority: 1
    lb_endpoints:
    - endpoint: {{address: {{socket_address: {{address: 10.0.0.1, port_value: 8000}}}}, hostname: a.example}}
      load_balancing_weight: 2
      metadata: {{filter_metadata: {{envoy.lb: {{tier: gold, gpus: 8, nested: {{a: 1}}}}, other: {{x: y}}}}}}
    - endpoint: {{address: {{socket_address: {{address: "2001:db8::1", port_value: "8000"}}}}}}
      health_status: DEGRADED
    - {{health_status: DRAINING, endpoint: {{address: {{socket_address: {{address: 10.0.0.3, port_value: 8000}}}}}}}}
    - {{health_status: 2, endpoint: {{address: {{socket_address: {{address: 10.0.0.4, port_value: 8000}}}}}}}}
"""
PLACE = {"topology.kubernetes.io/region": "r1", "topology.kubernetes.io/zone": "z1", "topology.istio.io/subzone": "s1"}
TARGETS = (
    Target("10.0.0.1:8000", "10.0.0.1", 8000, labels={**PLACE, "tier": "gold", "gpus": "8"}),
    Target("[2001:db8::1]:8000", "2001:db8::1", 8000, labels=PLACE),
)


def parsed(text: str):
    return parse_targets_file(text.encode(), Path("eds.yaml"))


def server(address: str = "10.0.0.1", port: object = 8000, **more: object) -> dict:
    return {"endpoint": {"address": {"socket_address": {"address": address, "port_value": port}}}, **more}


def assignment(*servers: dict, **more: object) -> dict:
    return {"@type": TYPE, "cluster_name": "llm", "endpoints": [{"lb_endpoints": servers}], **more}


def camel_case(value: object) -> object:
    """Return the document as protobuf's JSON spells it."""
    if isinstance(value, dict):
        return {
            "".join(part.title() if index else part for index, part in enumerate(key.split("_"))): camel_case(inner)
            for key, inner in value.items()
        }
    return [camel_case(each) for each in value] if isinstance(value, list) else value


def test_ocm_14_endpoints_of_envoy_that_take_requests_are_read_with_their_place_and_labels():
    found = parsed(YAML)
    assert (found.value, found.size, found.remarks) == (TARGETS, 2, ())


def test_ocm_14_both_spellings_and_a_single_assignment_are_read():
    document = yaml.safe_load(YAML)
    (only,) = document["resources"]
    for form in (camel_case(document), only, camel_case({"endpoints": only["endpoints"]})):
        assert parsed(json.dumps(form)).value == TARGETS
    wrapped = {"resources": [{"@type": "type.googleapis.com/envoy.service.discovery.v3.Resource", "resource": only}]}
    assert parsed(json.dumps(wrapped)).value == TARGETS
    assert parsed('{"resources": []}').value == parsed('{"cluster_name": "llm"}').value == ()


def test_ocm_14_own_form_stays_the_own_form():
    (found,) = parsed("endpoints: [{name: a, address: 10.0.0.1, port: 1}]").value
    assert found == Target("a", "10.0.0.1", 1)
    with pytest.raises(ValueError, match="no list 'endpoints'"):
        parsed("servers: []")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            {"resources": [assignment(server(), server(port=70_000))]},
            "resources[0].endpoints[0].lb_endpoints[1].endpoint.address.socket_address.port_value: 70000 is not a port",
        ),
        (
            assignment({"endpoint": {"address": {"pipe": {"path": "/run/a"}}}}),
            "endpoints[0].lb_endpoints[0].endpoint.address.socket_address is missing",
        ),
        (assignment(server(address="")), "socket_address.address: "),
        (assignment({"endpoint_name": "a"}), "endpoints[0].lb_endpoints[0].endpoint is missing"),
        ({"cluster_name": "llm", "endpoints": 3}, "endpoints is 3: write a list"),
        ({"resources": {}}, "resources is not a list: for an empty pool write 'resources: []'"),
        ({"resources": [{"@type": "type.googleapis.com/x.Cluster"}]}, "resources[0] is not a ClusterLoadAssignment"),
    ],
)
def test_ocm_14_mistake_in_a_file_of_envoy_is_named_with_its_path(document, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        parsed(yaml.safe_dump(document))


async def test_ocm_14_unknown_fields_of_envoy_are_told_and_change_nothing(tmp_path):
    (file := tmp_path / "eds.yaml").write_text(yaml.safe_dump(assignment(server(helth_status="DRAINING"), wieght=1)))
    source = FileDiscovery(FileDiscoveryParameters(path=str(file)), clock=ManualClock())
    store = Datastore(ManualClock())
    with capture_logs() as logs:
        await source.start(store)
    assert [endpoint.hostport for endpoint in store.endpoints] == ["10.0.0.1:8000"]
    first, second = map(str, source.inputs.ignored)
    place = f"{file}: ClusterLoadAssignment llm: "
    assert first.startswith(f"{place}endpoints[].lb_endpoints[].helth_status is unknown: did you mean 'health_status'?")
    assert second.startswith(f"{place}wieght is unknown: ")
    assert [line["reason"] for line in logs] == [first, second]
