# SPDX-License-Identifier: Apache-2.0
"""The generated files: what the code says is what they say."""

import importlib.util
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from epp.cli import options

REPOSITORY = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("generate", REPOSITORY / "tools" / "generate.py")
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)

LICENCES = "docs/licences.md"  # differs from one version of Python to another


@pytest.mark.parametrize("path", sorted(generate.PAGES.keys() - {LICENCES}))
def test_generated_file_is_what_the_code_says(path):
    if (REPOSITORY / path).read_text() != generate.PAGES[path]():
        pytest.fail(f"{path} is out of date: run `make docs`", pytrace=False)


def locked_versions() -> dict[str, str]:
    pins = re.findall(r"^(\S+==.*?) \\$", (REPOSITORY / ".lock" / "test.txt").read_text(), re.MULTILINE)
    here = [pin for pin in map(Requirement, pins) if pin.marker is None or pin.marker.evaluate()]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in here}


def test_every_dependency_has_its_licence_listed_at_the_version_that_is_locked():
    listed = dict(
        re.findall(r"^\| `([\w-]+)` \| ([\w.]+) \| \S.* \|", (REPOSITORY / LICENCES).read_text(), re.MULTILINE)
    )
    locked = locked_versions()
    needed = {name: locked[name] for name in generate.dependencies()}
    assert len(needed) > 40
    if not needed.items() <= listed.items():
        pytest.fail(f"{LICENCES} is out of date: run `make docs`", pytrace=False)


def test_licence_of_every_dependency_is_known():
    found = {name: generate.licence_of(name) for name in generate.dependencies()}
    assert not {name for name, licence in found.items() if not re.fullmatch(r"[\w. +()-]{2,80}", licence)}


def test_every_flag_that_is_dropped_is_in_the_reference():
    tables = [table for table in vars(options).values() if isinstance(table, frozenset)]
    known = {flag for table in tables for flag in table if flag.startswith("--")}
    gone = {flag for flag in known if generate.llm_d_fate(flag) is not None}
    assert gone
    assert gone <= generate.LLM_D_DEFAULTS.keys()


def test_references_have_a_row_for_what_a_reader_looks_up():
    flags, metrics = generate.flags_markdown(), generate.metrics_markdown()
    errors, headers = generate.errors_markdown(), generate.headers_markdown()
    assert "| `--grpc-port` | `PORT`, 0 to 65535 | `9002` | the same | " in flags
    assert "| `--max-request-body` | `SIZE` | `32Mi` | - | " in flags
    assert "| `--health-checking` | `true\\|false` | `true` | default `false` | " in flags
    assert "| `--enable-pprof` | `true` | no effect |" in flags
    assert "| `--ha-enable-leader-election` | `true\\|false` | `false` | the same | " in flags
    assert "## epp config show" in flags
    assert "| `llm_d_epp_ready_endpoints` | gauge | `name` | " in metrics
    assert "| `llm_d_epp_input_problems` | gauge | `plugin_name`, `file` | " in metrics
    assert "| `llm_d_epp_scheduler_e2e_duration_seconds` | histogram | | " in metrics
    assert "| `BodyTooLargeError` | 413 | | | `the request body is larger than " in errors
    assert "| `AdmissionDeniedError` | that of the cause | `<reason>` | | `request cannot be admitted: " in errors
    assert "`inference error: BadRequest - model not found in request body` |" in errors
    assert (
        "\n## From the picker, for the client\n\n| name | |\n|---|---|\n| `x-llm-d-request-dropped-reason` | "
        in headers
    )
