# SPDX-License-Identifier: Apache-2.0
"""h2spec against `epp serve`: all of RFC 9113 and RFC 7541 that it tries, in plaintext and over TLS."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.h2spec.h2spec_report import Case, Outcome, read_report
from tests.support.serving import PLAIN, Served, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

CASES = {"generic": 44, "http2": 94, "hpack": 7}
"""How many there are: one that is not run is not passed."""
ANSWER_SECONDS = 10
"""What h2spec waits for an answer; only a case that fails takes as long."""

CANNOT_APPLY: dict[str, str] = {}
"""Cases that a gRPC server cannot pass, and why. One that passes does not belong here."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["plaintext", "TLS"])
async def served(request) -> AsyncIterator[tuple[Served, list[str]]]:
    """A picker, and what h2spec must be told of it."""
    flags, told = ([PLAIN], []) if request.param == "plaintext" else ([], ["--tls", "--insecure"])
    async with serving(None, "--endpoints=127.0.0.1:1", "--drain-quiet-period=10ms", *flags) as served:
        yield served, told


async def found_by(h2spec: Path, part: str, served: Served, told: list[str], report: Path) -> list[Case]:
    process = await asyncio.create_subprocess_exec(
        h2spec,
        part,
        *told,
        f"--port={served.grpc_port}",
        f"--timeout={ANSWER_SECONDS}",
        f"--junit-report={report}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        return read_report(report)
    except FileNotFoundError as error:
        raise AssertionError(said.decode()) from error


@pytest.mark.parametrize("part", CASES)
async def test_cases_pass_but_for_those_that_cannot_apply(h2spec, served, part, tmp_path):
    picker, told = served
    cases = await found_by(h2spec, part, picker, told, tmp_path / "report.xml")
    assert len({case.name for case in cases}) == CASES[part]
    wrong = {case.name: f"{case.outcome}: {case.problem}" for case in cases if case.outcome is not Outcome.PASSED}
    surprises = [f"{name}\n    {problem}" for name, problem in wrong.items() if name not in CANNOT_APPLY]
    assert not surprises, "\n".join(surprises)
    passed = {name for name in CANNOT_APPLY if name.startswith(part)} - wrong.keys()
    assert not passed, "these may leave the table"
    assert picker.command.running
