# SPDX-License-Identifier: Apache-2.0
"""The packages of the image exist as wheels for each processor that deploy/README.md names."""

import subprocess
import sys

import pytest

from tests.support.wheels import REPOSITORY


@pytest.mark.timeout(600)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_each_package_has_a_wheel_for_the_processor(machine, tmp_path):
    platforms = [f"--platform=manylinux_2_{glibc}_{machine}" for glibc in (17, 27, 28, 34)]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--require-hashes"),
            *("--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.13", *platforms),
            *("--target", tmp_path, "--requirement", REPOSITORY / ".lock" / "image.txt"),
        ],
        check=True,
    )
