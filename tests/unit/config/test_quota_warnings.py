# SPDX-License-Identifier: Apache-2.0
"""Quotas that cannot hold as they are written: warned of, each where it is deserved."""

import pytest

HARDWARE = "- type: accelerator-data-source\n"


def quotas(parameters: str, *, also: str = "") -> str:
    return f"plugins:\n- type: tenant-quotas\n  parameters: {parameters}\n{also}"


def default(limits: str) -> str:
    return f"{{default: {limits}}}"


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        ("{single: {devices: 2}}", "hardware"),
        ("{single: {acceleratorMemory: 40Gi}}", "hardware"),
        ("{single: {tflops: 10}}", "hardware"),
        ("{total: {acceleratorMemory: 40Gi}}", "hardware"),
        ("{total: {tflops: 10}}", "hardware"),
        ("{total: {deviceSecondsPerDay: 10}}", "hardware"),
        ("{single: {dollars: 1}}", "dollars"),
        ("{total: {dollarsPerDay: 1, tflops: 3}}", "hardware and dollars"),
    ],
)
def test_limit_of_what_no_data_source_tells_is_warned_of(warned, limits, what):
    expected = (
        f"c.yaml:5:3: plugins[0].parameters: plugin 'tenant-quotas' limits {what}, but no data source of this "
        "configuration reports accelerators: these limits have no effect; add `- type: accelerator-data-source` "
        "under plugins"
    )
    for parameters in (default(limits), f"{{quotas: [{{tenant: a, {limits[1:-1]}}}]}}"):
        assert warned(quotas(parameters)) == [expected]
    assert warned(quotas(default(limits), also=HARDWARE)) == []


def test_limits_of_requests_and_tokens_need_no_data_source(warned):
    limits = "{single: {promptTokens: 5}, total: {concurrentRequests: 5, tokensPerMinute: 9}}"
    assert warned(quotas(default(limits))) == warned(quotas("{}")) == []


def test_requests_that_are_to_wait_where_nothing_waits_are_warned_of(warned):
    text = quotas(default("{total: {concurrentRequests: 5}, whenExceeded: Wait}"))
    (warning,) = warned(text)
    assert warning == (
        "c.yaml:5:3: plugins[0].parameters: plugin 'tenant-quotas' makes requests above a quota wait, but the feature "
        "gate flowControl is off: they are refused with 429; add flowControl to featureGates, or write "
        "whenExceeded: Refuse"
    )
    (warning,) = warned(quotas("{quotas: [{tenant: a}, {tenant: b, whenExceeded: Wait}]}"))
    assert "flowControl is off" in warning
    for fine in (
        f"featureGates: [flowControl]\n{text}",
        text.replace("Wait", "Refuse"),
        text.replace(", whenExceeded: Wait", ""),
    ):
        assert warned(fine) == []
