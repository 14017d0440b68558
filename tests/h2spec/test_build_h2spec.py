# SPDX-License-Identifier: Apache-2.0
"""The module that pins h2spec, and the version that the cache is named for, are one."""

from tests.h2spec.build_h2spec import H2SPEC


def test_version_is_the_one_that_the_module_requires():
    (program,) = H2SPEC.programs
    name, _, _ = program.package.partition("/cmd")
    assert f"{name} {program.version}+incompatible" in (program.module / "go.mod").read_text()
