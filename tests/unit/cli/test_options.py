# SPDX-License-Identifier: Apache-2.0
"""Values of options: sizes, durations and TLS versions, with their errors."""

from typing import Annotated

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from epp.cli.options import option
from epp.runtime.flags import DURATION, SIZE, TLS_VERSION

UNITS = {"k": 1_000, "M": 1_000_000, "G": 1_000_000_000, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
SIZE_UNITS = {"": 1, "B": 1, "KB": 1_000, **UNITS, **{f"{unit}B": factor for unit, factor in UNITS.items()}}
measures = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


@measures.command()
def show(
    size: Annotated[int, option("A size.", SIZE)] = 64,
    wait: Annotated[float, option("A time.", DURATION)] = 0.05,
    tls: Annotated[str, option("A version.", TLS_VERSION)] = "1.2",
) -> None:
    typer.echo(f"{size} {wait}")


def measured(*arguments: str) -> str:
    return CliRunner().invoke(measures, arguments).output


@given(st.integers(1, 10**12), st.sampled_from(sorted(SIZE_UNITS)))
def test_size_is_its_number_times_its_unit(number, unit):
    assert measured("--size", f"{number}{unit}") == f"{number * SIZE_UNITS[unit]} 0.05\n"


def test_duration_is_seconds_and_defaults_are_taken_as_they_are():
    assert measured("--wait", "1m30s") == "64 90.0\n"
    assert measured("--wait=250ms") == "64 0.25\n"
    assert measured() == "64 0.05\n"


@pytest.mark.parametrize("size", ["", "-1", "0", "64 Mi", "64mi", "64mib", "64m", "64B5", "1.2.3", "Mi", "B"])
def test_bad_size_is_named_with_the_units(size):
    assert f"{size!r} is not a size: write bytes, or a number with k, M, G, Ki, Mi or Gi, such as 32Mi" in measured(
        f"--size={size}"
    )


@pytest.mark.parametrize("wait", ["", "5", "-1s", "5 s", "1d"])
def test_bad_duration_is_named(wait):
    assert f"{wait!r} is not a duration" in measured(f"--wait={wait}")


@pytest.mark.parametrize("version", ["VersionTLS12", "1.2", "VersionTLS13", "1.3"])
def test_tls_version_is_a_lower_bound(version):
    assert measured(f"--tls={version}") == "64 0.05\n"


@pytest.mark.parametrize("version", ["", "VersionTLS11", "1.1", "TLS12", "2"])
def test_other_tls_versions_are_no_lower_bound(version):
    assert f"{version!r} is not supported: write VersionTLS12 or VersionTLS13" in measured(f"--tls={version}")
