# SPDX-License-Identifier: Apache-2.0
"""Errors of plugins in words."""

import json

import pytest

from epp.framework import Request, Scorer
from epp.framework.arrays import ResultError
from epp.framework.messages import described
from epp.framework.testing import candidates


class Mistaken(Scorer):
    plugin_type = "mistaken"

    def score(self, request, candidates):
        return json.loads("{")  # the error is raised in another package

    def ask(self, request, candidates):
        return candidates.values("waiting")  # and this one in the framework


@pytest.mark.parametrize(
    ("method", "start", "line"),
    [("score", "JSONDecodeError: Expecting property name", 18), ("ask", "AttributeError: ", 21)],
)
def test_place_is_the_line_of_the_plugin_wherever_the_error_was_raised(method, start, line):
    with pytest.raises(Exception) as caught:  # noqa: PT011  of any type
        getattr(Mistaken(), method)(Request("r"), candidates(waiting=[0]))
    said = described(caught.value, Mistaken)
    assert said.startswith(start)
    assert said.endswith(f"test_faults.py:{line})")


def test_error_without_a_message_has_its_type():
    assert described(ValueError()) == "ValueError"


def test_what_a_plugin_returned_has_no_line():
    assert described(ResultError("returned nonsense"), Mistaken) == "returned nonsense"
