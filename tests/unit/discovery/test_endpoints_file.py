# SPDX-License-Identifier: Apache-2.0
"""Lists of endpoints in files, and clusters: names as addresses, and labels for the place of the metrics page."""

from pathlib import Path

import pytest

from epp.framework import ConfigurationError
from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.framework.endpoint import PagePlace
from epp.pool.discovery.endpoints_file import (
    FileDiscovery,
    FileDiscoveryParameters,
    MultiClusterFileDiscovery,
    parse_targets_file,
)
from epp.pool.discovery.targets import Target


def read(text: str):
    return parse_targets_file(text.encode(), Path("e.yaml")).value


def test_yaml_with_all_fields():
    assert read(
        """
        endpoints:
        - name: a
          namespace: models
          address: 10.0.0.1
          port: "8000"
          scheme: https
          labels: {llm-d.ai/role: decode, gpu: "8"}
          node: gpu-node-1
          cluster: east
          accelerator: {class: nvidia-h100-80gb, count: 4}
        - {name: a, address: "2001:DB8:0::1", port: 8001, scheme: http}  # of another namespace
        - {name: c, address: vllm-c.models.svc, port: 8002, labels: , scheme: , namespace: "", node: "", cluster: ""}
        """
    ) == (
        Target(
            *("a", "10.0.0.1", 8000, "models", {"llm-d.ai/role": "decode", "gpu": "8"}),
            node="gpu-node-1",
            cluster="east",
            accelerator=AcceleratorDeclaration(accelerator_class="nvidia-h100-80gb", count=4),
            tls=True,
        ),
        Target("a", "2001:db8::1", 8001),
        Target("c", "vllm-c.models.svc", 8002),
    )


def test_json_with_tabs_and_byte_order_mark_and_an_empty_list_are_read():
    text = '\ufeff{\n\t"endpoints":[{"name":"a","address":"10.0.0.1","port":8000}]\n}'
    assert read(text) == (Target("a", "10.0.0.1", 8000),)
    assert read("endpoints: []") == ()


GOOD = "- {name: a, address: 10.0.0.1, port: 8000}\n"


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ("- {name: b, address: 10.0.0.2}", r"endpoints\[1\] 'b' \(line 3\): port is missing; add it"),
        ("- {address: 10.0.0.2, port: 1}", r"endpoints\[1\] \(line 3\): name is missing"),
        ("- {name: b, port: 1}", "address is missing"),
        ("- {name: b, address: 10.0.0.2, port: 80000}", "port: 80000 is not a port: write a number from 1 to 65535"),
        ("- {name: b, address: 10.0.0.2, port: http}", "port: 'http' is not a port"),
        ("- {name: b, address: 10.0.0.2, port: true}", "port: True is not a port"),
        ("- {name: b, address: 10.0.0.2, port: 1.5}", "port: 1.5 is not a port"),
        ("- name: b\n  address: 10.0.0.2:80\n  port: 80", r"\(line 4\): address: '10.0.0.2:80' is not an IP address"),
        ("- {name: b, address: '[::1]', port: 80}", r"address: '\[::1\]' has brackets: write ::1"),
        ("- {name: b, address: 10.1, port: 80}", "address is 10.1; write it in quotes"),
        ("- {name: 7, address: 10.0.0.2, port: 80}", "name is 7; write it in quotes"),
        ("- {name: b, address: h, port: 80, labels: {gpu: 8}}", "labels.gpu: gpu is 8; write it in quotes"),
        ("- {name: b, address: h, port: 80, labels: [x]}", "labels is a list; write a mapping"),
        ("- name: b\n  adress: h\n  port: 80", r"\(line 4\): adress: unknown key; did you mean 'address'\?"),
        *((f"- {{name: b, address: h, port: 80, scheme: {each}}}", "use 'http', 'https'") for each in ("HTTPS", "h2")),
        ("- {name: b, address: h, port: 80, zzz: 1}", "zzz: unknown key; known are accelerator, address, cluster"),
        ("- {name: b, address: h, port: 80, node: 7}", "node is 7; write it in quotes"),
        ("- {name: b, address: h, port: 80, accelerator: h100}", "accelerator is 'h100'; write a mapping"),
        *(
            (f"- {{name: b, address: h, port: 80, accelerator: {{{field}: {value}}}}}", f"accelerator.{problem}")
            for field, value, problem in (
                ("clas", "h100", "clas: unknown key; did you mean 'class'"),
                ("count", "four", "count: count is 'four'; write a whole"),
                ("count", "-2", "count: count is -2; it must be between 1 and 65536"),
                ("sharers", "0", "sharers: sharers is 0; it must be between 1 and 65536"),
                ("costPerHour", "-2", "costPerHour: costPerHour is -2; it must be between 0 and 10000"),
                ("costPerHour", ".nan", "costPerHour: costPerHour is nan; it must be between 0 and 10000"),
                ("memory", "80GB", "memory: memory is '80GB': write the size of one device, such as 80Gi"),
                ("memory", "9Pi", "memory: memory is '9Pi': write the size of one device, such as 80Gi"),
                ("profile", "huge", "profile: profile is 'huge': write a MIG profile such as 3g.20gb"),
            )
        ),
        (
            "- {name: b, address: h, port: 80, accelerator: {class: a30, profile: 3g.40gb}}",
            "accelerator: profile is '3g.40gb', which 'a30' cannot have: write one of 1g.6gb",
        ),
        ("- text", r"endpoints\[1\] \(line 3\): not a mapping: write the fields name"),
        (
            "- {name: a, address: h, port: 80}",
            r"name: 'a' in namespace 'default' repeats endpoints\[0\]: leave one out",
        ),
        ("- {name: b, address: 10.0.0.1, port: '8000'}", r"address: '10.0.0.1' with port 8000 repeats endpoints\[0\]"),
    ],
)
def test_bad_entry_is_refused_with_place_field_and_remedy(entries, problem):
    with pytest.raises(ValueError, match=problem):
        read("endpoints:\n" + GOOD + entries)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no list 'endpoints': for an empty pool write 'endpoints: \\[\\]'"),
        ("[]", "no list 'endpoints'"),
        ("endpoints:", "'endpoints' is not a list"),
        ("endpoints: {a: b}", "'endpoints' is not a list"),
        ("endpoints: []\nendpoint: []", "unknown field 'endpoint': the only field is 'endpoints'"),
        ("endpoints: []\n}\n", "line 2: neither YAML nor JSON"),
        ("endpoints: !!python/object:os.system {}", "line 1: neither YAML nor JSON: could not determine a constructor"),
        ("endpoints: [2024-13-45]", r"endpoints\[0\] .line 1.: not a mapping"),
        ("[" * 100_000, "line 1: nested more than 16 deep"),
        ("- " * 100_000, "line 1: nested more than 16 deep"),
        ("endpoints: &a [*a]", "line 1: an alias is inside its own anchor"),
    ],
)
def test_file_that_is_no_list_of_endpoints_is_refused(text, problem):
    with pytest.raises(ValueError, match=problem):
        read(text)


FILE = """\
endpoints:
- name: a
  address: gw.cluster-a.example.com
  port: "443"
  labels: {metricsAddress: epp.a.example.com, metricsPort: "9090"}
- {name: b, address: "2001:db8::1", port: "80", labels: {metricsAddress: "2001:db8::2"}}
- {name: c, address: 10.0.0.3, port: "80", labels: {metricsPort: "9090"}}
- {name: d, address: gw.cluster-d.example.com, port: "80"}
"""


@pytest.fixture
def clusters(tmp_path, names):
    def clusters(text: str = FILE, cls: type[FileDiscovery] = MultiClusterFileDiscovery) -> FileDiscovery:
        path = tmp_path / "clusters.yaml"
        path.write_text(text)
        return cls(FileDiscoveryParameters(path=str(path)), lookup=names)

    names.table = {
        "gw.cluster-a.example.com": ["10.0.0.1"],
        "epp.a.example.com": ["10.0.1.1"],
        "gw.cluster-d.example.com": ["10.0.0.4"],
    }
    return clusters


async def test_names_become_addresses_and_labels_the_place_of_the_metrics(clusters, pool):
    await clusters().start(pool)
    assert pool.hostports == {"a": "10.0.0.1:443", "b": "[2001:db8::1]:80", "c": "10.0.0.3:80", "d": "10.0.0.4:80"}
    assert {each.name: each.metrics for each in pool.endpoints} == {
        "a": PagePlace("10.0.1.1", 9090, "epp.a.example.com"),
        "b": PagePlace("2001:db8::2", 80),
        "c": PagePlace("10.0.0.3", 9090),
        "d": None,
    }


async def test_name_of_a_page_that_does_not_resolve_yet_leaves_the_cluster_in_the_pool(clusters, pool, names):
    del names.table["epp.a.example.com"]
    discovery = clusters()
    await discovery.start(pool)
    assert pool.endpoints[0].metrics == PagePlace("epp.a.example.com", 9090)
    names.table["epp.a.example.com"] = ["10.0.1.1"]
    await discovery.resolver.refresh(pool)
    assert pool.endpoints[0].metrics == PagePlace("10.0.1.1", 9090, "epp.a.example.com")
    names.table["epp.a.example.com"] = ["10.0.1.9"]
    await discovery.resolver.refresh(pool)
    assert pool.endpoints[0].metrics == PagePlace("10.0.1.9", 9090, "epp.a.example.com")


async def test_labels_of_other_lists_of_endpoints_are_only_labels(clusters, pool):
    await clusters(cls=FileDiscovery).start(pool)
    assert {each.metrics for each in pool.endpoints} == {None}


@pytest.mark.parametrize("labels", ['{metricsPort: "http"}', '{metricsAddress: "http://x"}', '{metricsPort: "70000"}'])
async def test_label_that_is_no_address_is_an_error_at_its_place(clusters, pool, labels):
    text = f"endpoints:\n- name: a\n  address: 10.0.0.1\n  port: 80\n  labels: {labels}\n"
    place = r"endpoints\[0\] 'a' \(line 5\): labels: metricsAddress or metricsPort: "
    with pytest.raises(ConfigurationError, match=place):
        await clusters(text).start(pool)
