# SPDX-License-Identifier: Apache-2.0
"""`epp check`: what it shows of flow control and quotas."""

import json

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
FLOW_CONTROL = """\
featureGates: [flowControl]
plugins:
- {type: queue-scorer}
- {type: round-robin-fairness-policy, name: turns}
- {type: priority-holdback-policy, parameters: {minCeiling: 0.5}}
flowControl:
  maxBytes: 10Gi
  noEndpointRequestTTL: 5m
  usageLimitPolicyPluginRef: priority-holdback-policy
  defaultNegativePriorityBand: {maxRequests: 1}
  priorityBands:
  - {priority: 100, maxRequests: 500, fairnessPolicyRef: turns}
  - {priority: -10, maxBytes: 1500, defaultRequestTTL: 0s}
"""


def test_tree_shows_what_flow_control_comes_to(check):
    code, said = check("--allow-experimental-plugins=true", a=HEAD + FLOW_CONTROL)
    assert code == 0
    policies = "global-strict-fairness-policy, fcfs-ordering-policy"
    assert (
        f"""\
├── flow control
│   ├── detector utilization-detector (added: the default of flowControl)
│   ├── usage limits priority-holdback-policy with {{minCeiling: 0.5}}
│   ├── all together: any number of requests, 10 GiB at most; without endpoints for 300 s
│   ├── priority 100: 500 requests, 1 GB, for 60 s; turns (round-robin-fairness-policy), fcfs-ordering-policy
│   ├── priority 0: 5000 requests, 1 GB, for 60 s; {policies}, ceiling 75%
│   ├── priority -10: 5000 requests, 1500 bytes, without a time limit; {policies}, ceiling 50%
│   ├── other priorities above 0: 5000 requests, 1 GB, for 60 s; {policies}
│   └── other priorities below 0: 1 request, 1 GB, for 60 s; {policies}
├── profile picker"""
        in said
    )


def test_flow_control_is_there_for_programs_and_null_where_it_is_off(check):
    _, said = check("--allow-experimental-plugins=true", "--output", "json", on=HEAD + FLOW_CONTROL, off=HEAD)
    on, off = (report["graph"]["flowControl"] for report in json.loads(said))
    assert off is None
    assert (on["maxRequests"], on["maxBytes"], on["noEndpointTtlSeconds"]) == (None, 10 * 2**30, 300.0)
    bands = {band["priority"]: (band["maxRequests"], band["ttlSeconds"], band["ceiling"]) for band in on["bands"]}
    assert bands == {100: (500, 60.0, 1.0), 0: (5000, 60.0, 0.75), -10: (5000, None, 0.5)}
    assert on["negativeBand"]["maxRequests"] == 1


QUOTAS = """\
plugins:
- {type: queue-scorer}
- type: tenant-quotas
  parameters:
    quotas:
    - {tenant: team-a, total: {concurrentRequests: 50, acceleratorMemory: 80Gi}}
    - {tenant: guests, total: {tokensPerMinute: 600}, whenExceeded: Refuse}
    - {tenant: owner}
"""
DEFAULT = "    default: {single: {outputTokens: 100}}\n"


def test_tree_shows_what_tenants_may_take(check):
    _, said = check(a=HEAD + QUOTAS)
    assert (
        """\
├── quotas tenant-quotas
│   ├── tenant guests: {total: {tokensPerMinute: 600}}; requests above the total are refused
│   ├── tenant owner: no limit
│   ├── tenant team-a: {total: {concurrentRequests: 50, acceleratorMemory: 80Gi}}; requests above the total wait
│   └── others: no limit
"""
        in said
    )
    _, said = check(a=HEAD + QUOTAS + DEFAULT)
    assert "│   └── each other tenant: {single: {outputTokens: 100}}\n" in said


def test_quotas_are_there_for_programs(check):
    _, said = check("--output", "json", on=HEAD + QUOTAS + DEFAULT, off=HEAD)
    on, off = (report["graph"]["quotas"] for report in json.loads(said))
    assert off == []
    (quotas,) = on
    assert quotas["source"]["name"] == "tenant-quotas"
    assert quotas["tenants"]["team-a"]["total"] == {"concurrentRequests": 50, "acceleratorMemory": "80Gi"}
    assert quotas["default"]["single"] == {"outputTokens": 100}


def test_of_very_many_tenants_some_are_shown(check):
    many = "".join(f"    - {{tenant: t{number:03}, total: {{tflops: 1}}}}\n" for number in range(60))
    _, said = check(a=HEAD + "plugins:\n- type: tenant-quotas\n  parameters:\n    quotas:\n" + many)
    assert "tenant t049: " in said
    assert "tenant t050: " not in said
    assert "├── and 10 more tenants\n" in said
