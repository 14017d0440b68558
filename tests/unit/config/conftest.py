# SPDX-License-Identifier: Apache-2.0
"""Configurations written in the tests themselves."""

import pytest

from epp.config import Builder, InvalidConfigError, assemble, load_text
from epp.framework import ManualClock
from epp.framework.registry import Registry

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


@pytest.fixture(scope="session")
def build():
    """Assemble a text that goes on after apiVersion and kind: its first line is line 3."""

    def build(text, *, registry=None, head=HEAD, **builder):
        loaded = load_text(head + text, "c.yaml")
        return assemble(loaded, Builder(registry or Registry(), ManualClock(), **builder))

    return build


@pytest.fixture(scope="session")
def refused(build):
    """Return the problems of such a text."""

    def refused(text, **options):
        with pytest.raises(InvalidConfigError) as caught:
            build(text, **options)
        return caught.value.problems

    return refused


@pytest.fixture(scope="session")
def warned(build):
    """Return the warnings of such a text, as they are shown."""
    return lambda text, **options: [str(warning) for warning in build(text, **options).warnings]
