# SPDX-License-Identifier: Apache-2.0
"""Which roles can do which stage."""

import pytest

from epp.framework import Request
from epp.framework.testing import candidates
from epp.plugins.disaggregation.roles import DecodeFilter, EncodeFilter, PrefillFilter

ENCODE, PREFILL, DECODE = EncodeFilter(), PrefillFilter(), DecodeFilter()


@pytest.mark.parametrize(
    ("role", "stages"),
    [
        ("encode", [ENCODE]),
        ("prefill", [PREFILL]),
        ("decode", [DECODE]),
        ("encode-prefill", [ENCODE, PREFILL]),
        ("prefill-decode", [PREFILL, DECODE]),
        ("both", [PREFILL, DECODE]),
        ("encode-prefill-decode", [ENCODE, PREFILL, DECODE]),
        ("trainer", []),
        ("", []),
        (None, [DECODE]),  # no label: a server that does everything the plain way
    ],
)
def test_role_does_these_stages(role, stages):
    pool = candidates(labels=[{} if role is None else {"llm-d.ai/role": role}])
    done = [stage for stage in (ENCODE, PREFILL, DECODE) if stage.filter(Request("r"), pool).all()]
    assert done == stages


def test_each_candidate_is_judged_by_its_own_role():
    pool = candidates(labels=[{"llm-d.ai/role": "prefill"}, {}, {"llm-d.ai/role": "decode"}])
    assert PREFILL.filter(Request("r"), pool).tolist() == [True, False, False]
    assert DECODE.filter(Request("r"), pool).tolist() == [False, True, True]
    assert ENCODE.filter(Request("r"), pool).tolist() == [False, False, False]
