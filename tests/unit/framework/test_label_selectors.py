# SPDX-License-Identifier: Apache-2.0
"""Label selectors in one line, as Kubernetes reads them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.endpoint import LabelSelector

LABELS = {"app": "vllm", "tier": "a", "weight": "10", "empty": "", "disaggregatedset.x-k8s.io/name": "my-set"}


@pytest.mark.parametrize(
    ("matches", "texts"),
    [
        (True, ["", "  ", "app", "! gone"]),
        (False, ["gone", "!app"]),
        (True, ["app=vllm", "app==vllm", "app!=sglang", "gone!=x", "empty=", "disaggregatedset.x-k8s.io/name=my-set"]),
        (False, ["app = sglang", "app!=vllm", "gone="]),
        (True, ["tier in (a, b)", "tier notin (b,c)", "gone notin (b)"]),
        (False, ["tier in (b)", "gone in (b)"]),
        (True, ["weight>9", "weight<11"]),
        (False, ["weight > 10", "app>1", "gone<1"]),
        (True, ["app=vllm,tier in (a, b),!gone"]),
        (False, ["app=vllm , tier in (b, c)"]),
    ],
)
def test_selector_matches_what_kubernetes_would(matches, texts):
    for text in texts:
        selector = LabelSelector.parse(text)
        assert selector.matches(LABELS) is matches, text
        assert LabelSelector.parse(str(selector)) == selector


@pytest.mark.parametrize(
    "text",
    [
        *("not a selector!!", "a b", "=x", "app=a b", "tier in a", "tier in (a", "a,,b", ",", "app=-x"),
        *("a/b/c", "x>one", "?"),
    ],
)
def test_what_is_no_selector_is_refused_with_the_part_that_is_wrong(text):
    with pytest.raises(ValueError, match="is not a label selector"):
        LabelSelector.parse(text)


names = st.from_regex(r"\A[a-z0-9]([-a-z0-9_.]{0,8}[a-z0-9])?\Z")


@given(st.dictionaries(names, names, max_size=4))
def test_selector_of_all_labels_matches_them(labels):
    text = ",".join(f"{key}={value}" for key, value in labels.items())
    assert LabelSelector.parse(text).matches(labels)


@given(st.text())
def test_no_text_fails_in_another_way(text):
    with contextlib.suppress(ValueError):
        LabelSelector.parse(text).matches(LABELS)
