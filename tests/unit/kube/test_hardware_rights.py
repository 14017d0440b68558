# SPDX-License-Identifier: Apache-2.0
"""Rights on hardware in the manifests: all kinds that are read, and nothing but reading."""

from pathlib import Path

import yaml

from epp.kube.resources import ACCELERATORS

MANIFEST = Path(__file__).parents[3] / "deploy" / "manifests" / "gateway-accelerators.yaml"
READ = {"get", "list", "watch"}


def rules():
    documents = yaml.safe_load_all(MANIFEST.read_text())
    return [rule for each in documents if each["kind"] in {"Role", "ClusterRole"} for rule in each["rules"]]


def test_ome_10_kinds_of_hardware_are_read_and_never_written():
    granted = {}
    for rule in rules():
        for group in rule["apiGroups"]:
            for plural in rule["resources"]:
                granted.setdefault((group, plural), set()).update(rule["verbs"])
    assert {(each.group, each.plural): granted.get((each.group, each.plural)) for each in ACCELERATORS} == {
        (each.group, each.plural): READ for each in ACCELERATORS
    }
