# SPDX-License-Identifier: Apache-2.0
"""Parameters that mean nothing are refused with a sentence that names them."""

from math import inf, nan

import pytest

from epp.framework import ConfigurationError, ManualClock
from epp.framework.registry import Registry


def term(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


A10 = {"gpu": "A10", "indexes": [[128, 1024], [128, 4096]], "tputs": [[8, 0.2], [2, 0.1]]}


def rollout(gating=None, *selectors):
    selector = {"name": "revision", "headerName": "X-Revision", "labelKey": "revision", "mode": "strict"}
    given = {"scope": {"labelSelector": "app=a"}, "headerSelectors": [selector | each for each in selectors]}
    return given if gating is None else given | {"revisionGating": gating}


def rates(profile):
    return {"profiles": [profile]}


def by_attribute(algorithm, *, key="depth"):
    return {"attributeKey": key, "algorithm": algorithm}


def lower(**normalization):
    return {"type": "linear_lower_is_better", "normalization": normalization}


REFUSED = {
    "accelerator-availability-filter": [
        ({"onUnknown": "drop"}, "'drop' is not known; use 'Pass', 'Fail'"),
        ({"onUnhealthy": "Fail"}, "'Fail' is not known; use 'Drain', 'Ignore'"),
        ({"maxVramUsed": 2}, "maxVramUsed is 2; it must be between 0 and 1"),
        ({"minFreeVram": "much"}, "minFreeVram: "),
        ({"minFreeTflops": -1}, "minFreeTflops is -1; it must be 0 or more"),
        ({"attributes": {"a/b": []}}, "a/b is empty; list at least one entry"),
    ],
    "accelerator-filter": [
        ({"minMemory": "lots"}, "minMemory: 'lots' is not a quantity"),
        ({"minArchitectureVersion": "9.x"}, "minArchitectureVersion is '9.x'; write a version such as 9.0"),
        ({"kinds": ["gpus"]}, "kinds has 'gpus'; use gpu, tpu, xpu, npu, cpu"),
        ({"vendors": [" "]}, "vendors has an empty entry"),
        ({"maxCostPerHour": -1}, "maxCostPerHour is -1; it must be 0 or more"),
        ({"onUnknown": "pass"}, "'pass' is not known; use 'Pass', 'Fail'"),
        (
            {"onUnknown": {"minMemori": "Pass"}},
            "onUnknown names 'minMemori', which is not a bound; did you mean 'minMemory'",
        ),
        ({"migProfiles": ["3g"]}, "migProfiles has '3g', which is not a MIG profile"),
        (
            {"minMemory": "80Gi", "maxMemory": 40},
            "minMemory is 80 GiB, above maxMemory, 40 GiB, and no device is within both: write the smaller size",
        ),
        (
            {"acceleratorClasses": ["H100", "a100"], "excludedClasses": ["h100"]},
            "excludedClasses and acceleratorClasses both have 'h100': leave it out of one of them",
        ),
        (
            {"migProfiles": ["3g.20gb"], "excludedMigProfiles": ["nvidia.com/mig-3g.20gb"]},
            "excludedMigProfiles and migProfiles both have '3g.20gb': leave it out of one of them",
        ),
        ({"migProfiles": ["3g.20gb"], "wholeDeviceOnly": True}, "migProfiles keeps only slices and wholeDeviceOnly"),
        ({"minComputeSlices": 8}, "minComputeSlices is 8, and a whole device has 7: write 7 or less"),
        ({"policy": "fastest"}, "policy is 'fastest'; use BestFit, Cheapest, MostCapable or FirstAvailable"),
        ({"cel": "device.vendor"}, "cel: unsupported expression at line 1, column 7"),
    ],
    "active-request-scorer": [({"maxBusyScore": nan}, "it must be")],
    "approx-prefix-cache-producer": [({"maxBytesPerServer": 0}, "maxBytesPerServer is 0; it must be at least 320")],
    "balance-scorer": [({"halfLife": duration}, "halfLife") for duration in ("0", "-1s", "soon")],
    "best-fit-scorer": [
        ({"memoryWeight": 0, "computeWeight": 0}, "memoryWeight and computeWeight are all 0"),
        ({"memoryWeight": -1}, "memoryWeight is -1; it must be between 0"),
        ({"minMemory": "lots"}, "minMemory: 'lots' is not a quantity"),
        ({"minMemory": 0}, "not a memory size"),
        ({"minComputeTFLOPS": -1}, "minComputeTFLOPS is -1; it must be 0 or more"),
        ({"preferredPrecisions": ["fp12"]}, "fp12"),
    ],
    "by-label": [
        ({"validValues": ["a"]}, "label is missing"),
        ({"label": "", "validValues": ["a"]}, "label is empty; give a name"),
        ({"label": "gpu"}, "no value of label 'gpu' would be kept; list validValues"),
    ],
    "cluster-score": [
        ({}, "scoreName is missing"),
        ({"source": "placement"}, "write the namespace/name of a Placement"),
        ({"source": "placement", "placement": "llm"}, "write the namespace/name of a Placement"),
        ({"source": "placement", "placement": "a/b", "scoreName": "x"}, "remove it"),
        ({"scoreName": "x", "placement": "a/b"}, "write source: placement"),
        ({"scoreName": "x", "weight": 11}, "between -10 and 10"),
        ({"scoreName": "x", "missing": "zero"}, "'zero' is not known"),
    ],
    "concurrency-detector": [
        ({"maxConcurrency": 0}, "maxConcurrency is 0; it must be at least 1"),
        ({"concurrencyMode": "both"}, "use 'requests', 'tokens', 'hybrid'"),
        ({"headroom": -1}, "headroom is -1; it must be 0 or more"),
    ],
    "context-length-aware": [({"label": ""}, "label is empty")],
    "cost-aware-spill": [
        ({"queueThreshold": 0}, "queueThreshold is 0; it must be above 0"),
        ({"kvThreshold": 1.5}, "kvThreshold is 1.5; it must be above 0 and at most 1"),
        ({"limits": {"l4": {"bound": -1}}}, "bound is -1; it must be above 0"),
        ({"maxConcurrency": -1}, "maxConcurrency is -1; it must be 0 or more"),
        ({"hysteresis": 0.5, "limits": {"l4": {"bound": 0.4}}}, "hysteresis is 0.5; it must be less"),
    ],
    "cost-per-request-scorer": [
        ({"profiles": [A10 | {"tputs": [[1, 2]]}]}, "tputs of 'A10' needs one row for each of the 2 output lengths"),
        ({"profiles": [A10 | {"tputs": [[1], [2]]}]}, "each row of tputs of 'A10' needs 2 numbers"),
        ({"profiles": [A10 | {"tputs": [[1, -1], [2, 2]]}]}, "tputs\\[0]\\[1] is -1; it must be 0 or more, and finite"),
        ({"profiles": [A10 | {"indexes": [[0, 1], [1, 2]]}]}, "indexes\\[0]\\[0] is 0; it must be above 0, and finite"),
        ({"profiles": [A10 | {"cost": -1}]}, "cost is -1; it must be 0 or more, and finite"),
        ({"tolerance": nan}, "tolerance is nan"),
        ({"expectedOutputTokens": -1}, "expectedOutputTokens is -1"),
        ({"batchSize": -1}, "batchSize is -1; it must be 0 or more"),
        ({"appliesTo": "early"}, "'early' is not known; use 'in-time', 'late', 'all'"),
        ({"profilePath": "/no/such/file"}, "profilePath '/no/such/file': cannot be read: No such file"),
    ],
    "data-parallel-profile-handler": [
        ({"primaryPort": -1}, "primaryPort is -1; it must be between 1 and 65535"),
        ({"primaryPort": 65536}, "primaryPort is 65536; it must be between 1 and 65535"),
    ],
    "disagg-profile-handler": [
        ({"stageOrder": "encode-first"}, "'encode-first' is not known; use 'decode-first', 'prefill-first'"),
        ({"profiles": {"decode": ""}}, "decode is empty; give a name, or leave it out"),
        ({"profiles": {"decode": "x", "prefill": "x"}}, "the decode and the prefill stage both run profile 'x'"),
        ({"decodeProfile": "encode"}, "the decode and the encode stage both run profile 'encode'"),
        ({"profiles": {"decode": "x"}, "prefillProfile": "y"}, "together with prefillProfile, which they replace"),
        (
            {"stageOrder": "prefill-first", "deciders": {"prefill": "p"}},
            "deciders.prefill is 'p', but with stageOrder prefill-first the prefill leg runs first",
        ),
    ],
    "disaggregatedset-rollout-screener": [
        ({}, "scope"),
        ({"scope": {}}, "labelSelector"),
        ({"scope": {"labelSelector": ""}}, "labelSelector"),
        ({"scope": {"labelSelector": "not a selector!!"}}, "not a label selector"),
        (rollout(), "neither headerSelectors nor revisionGating"),
        (rollout({"mode": "disabled"}), "neither headerSelectors nor revisionGating"),
        (rollout({"mode": "sum"}), "requireRoles is missing"),
        (rollout({"mode": "bogus"}), "bogus"),
        (rollout({"mode": "sum", "requireRoles": {"values": []}}), "values"),
        (rollout({"mode": "sum", "requireRoles": {"values": ["a", "a"]}}), "'a' is repeated"),
        (rollout(None, {"mode": "loose"}), "loose"),
        (rollout(None, {"name": ""}), "name"),
        (rollout(None, {"headerName": "a b"}), "headerName"),
        (rollout(None, {}, {"headerName": "x-another"}), "name 'revision' is repeated"),
        (rollout(None, {}, {"name": "another"}), "headerName 'x-revision' is repeated"),
    ],
    "endpoint-attribute-scorer": [
        (by_attribute({}), "type is missing"),
        (by_attribute({"type": "softmax"}), "'softmax' is not known; use 'linear_lower_is_better', 'linear_higher_is_"),
        (by_attribute(lower(fixedRange={"min": 1, "max": 1})), "min must be below max"),
        (by_attribute(lower(fixedRange={"min": 0, "max": inf})), "min must be below max, and both"),
        (
            by_attribute(lower(fixedRange={"min": 0, "max": 1}, adaptiveRange={})),
            "normalization has fixedRange and ada",
        ),
        (by_attribute(lower(), key=""), "attributeKey is empty"),
    ],
    "endpoint-rates-producer": [
        ({"profilePath": "/no/such/file"}, "profilePath '/no/such/file': cannot be read: No such file"),
        ({"minTokens": 0}, "minTokens is 0; it must be at least 1"),
        ({"minOutputTokens": 1}, "minOutputTokens is 1; it must be at least 2"),
        ({"halfLife": "soon"}, "halfLife: 'soon' is not a duration"),
        ({"halfLife": "0"}, "halfLife is '0'; it must be above 0"),
        (rates({"model": "m"}), "profile 'm' has no rates; give prefillTokensPerSecond, alphaMs or deltaMs"),
        (rates({"accelerator": "h100"}), "profile '\\*/h100' has no rates"),
        (rates({"alphaMs": 0}), "alphaMs is 0; it must be above 0"),
        (rates({"alphaMs": 1, "betaMs": -1}), "betaMs is -1; it must be 0 or more"),
        (rates({"prefillTokensPerSecond": nan}), "prefillTokensPerSecond is nan; it must be above 0"),
    ],
    "first-available-scorer": [
        ({"classes": ["a", "A"]}, "classes repeats 'a'"),
        ({"classes": [""]}, "classes contains an empty name"),
        ({"limits": {"a": {}, "A": {}}}, "limits repeats 'a'"),
        ({"queueDepthThreshold": 0}, "queueDepthThreshold is 0; it must be above 0"),
        ({"limits": {"a": {"kvCacheUtilThreshold": -1}}}, "kvCacheUtilThreshold is .*; it must be above 0"),
    ],
    "gpu-neighbour-scorer": [({"mpsWeight": 1.5}, "mpsWeight is 1.5; it must be between 0 and 1")],
    "header-label-affinity-scorer": [
        ({"headerName": "", "labelKey": "a"}, "headerName is empty"),
        ({"headerName": "a", "labelKey": ""}, "labelKey is empty"),
    ],
    "header-profile-handler": [
        ({"headerName": " "}, "headerName is empty"),
        ({"defaultProfile": " "}, "defaultProfile is empty"),
    ],
    "inflight-load-producer": [
        ({"outputRatio": -0.1}, "it must be 0 or more"),
        ({"outputRatio": inf}, "it must be 0 or more"),
        ({"maxEstimatedOutputTokens": -1}, "it must be 0 or more"),
    ],
    "joint-aggregator": [
        ({"topK": 0}, "topK is 0; it must be between 1 and 8"),
        ({"topK": 9}, "topK is 9; it must be between 1 and 8"),
        ({"localityWeight": -1}, "localityWeight is -1; it must be 0 or more"),
        ({"pairingWeight": float("nan")}, "pairingWeight is nan; it must be 0 or more"),
        ({"weights": {"decode": -0.5}}, "decode is -0.5; it must be 0 or more"),
        ({"locality": {"zone": 2}}, "zone is 2; it must be between 0 and 1"),
        ({"pairing": {"same": -1}}, "same is -1; it must be between 0 and 1"),
        ({"pairing": {"labelKey": ""}}, "labelKey is empty"),
        ({"pairing": {"rules": [{"from": "a", "to": "b", "value": 7}]}}, "value is 7; it must be between 0 and 1"),
        ({"profiles": {"decode": "prefill"}}, "the decode and the prefill stage both run profile 'prefill'"),
    ],
    "kv-transfer-cost": [({"efficiency": 0}, "efficiency is 0; it must be above 0 and at most 1")],
    "label-selector-filter": [
        ({"matchExpressions": [{"key": "zone", "operator": "Is", "values": ["a"]}]}, "'Is' is not known; use 'In'"),
        ({"matchExpressions": [{"key": "zone", "operator": "In"}]}, "operator In for label 'zone' has no values"),
        (
            {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": []}]},
            "operator NotIn for label 'zone' has no values",
        ),
        (
            {"matchExpressions": [{"key": "zone", "operator": "Exists", "values": ["a"]}]},
            "operator Exists for label 'zone' takes no values",
        ),
        ({"matchExpressions": [{"key": "", "operator": "Exists"}]}, "key is empty"),
    ],
    "latency-observer-producer-hub": [
        ({"lowPercentile": 50}, "lowPercentile is 50; it must be below"),
        ({"windowSize": 50}, "windowSize is 50; it must be at least maxRequests"),
        ({"bucketDuration": "soon"}, "bucketDuration: 'soon' is not a duration"),
        ({"intervalDuration": "0s"}, "intervalDuration is '0s'; it must be above 0"),
    ],
    "load-aware-scorer": [({"threshold": nan}, "it must be above 0")],
    "most-capable-scorer": [
        ({"memoryWeight": 0, "bandwidthWeight": 0, "computeWeight": 0}, "are all 0; set at least one"),
        ({"preferredPrecisions": []}, "preferredPrecisions is empty"),
    ],
    "node-affinity-filter": [
        ({"nodeSelectorTerms": [{}]}, "a term without tests selects no node"),
        ({"nodeSelectorTerms": [term("a", "Exists", "b")]}, "a: Exists takes no values"),
        ({"nodeSelectorTerms": [term("a", "In")]}, "a: In needs values"),
        ({"nodeSelectorTerms": [term("a", "Gt", "4", "5")]}, "a: Gt takes one whole number"),
        ({"nodeSelectorTerms": [term("a", "Lt", "4Gi")]}, "a: Lt takes one whole number"),
        ({"nodeSelectorTerms": [term("a", "Gte", "4")]}, "'Gte' is not known"),
        ({"nodeSelectorTerms": [term("", "Exists")]}, "key is empty"),
        (
            {"nodeSelectorTerms": [{"matchFields": [{"key": "spec.name", "operator": "Exists"}]}]},
            "matchFields has 'spec.name'",
        ),
    ],
    "node-compact-gpu-low-load-scorer": [
        ({"bands": 0}, "bands is 0; it must be at least 1"),
        ({"nodeWeight": 1.5}, "nodeWeight is 1.5; it must be between 0 and 1"),
        ({"maxNumSeqs": 0}, "maxNumSeqs is 0; it must be at least 1"),
        ({"combine": "sum"}, "sum"),
    ],
    "pd-profile-handler": [
        ({"primaryPort": 70000}, "primaryPort is 70000; it must be between 0 and 65535"),
        ({"deciderPluginName": ""}, "deciderPluginName is empty"),
        ({"prefillProfile": "decode"}, "the decode and the prefill stage both run profile 'decode'"),
    ],
    "predicted-latency-producer": [
        ({"contextTTL": "soon"}, "contextTTL"),
        ({"predictionTimeout": 0}, "predictionTimeout is 0"),
        ({"sloBufferFactor": 0}, "sloBufferFactor"),
    ],
    "preference-order-scorer": [
        ({}, "preferenceOrder is missing"),
        ({"preferenceOrder": []}, "preferenceOrder is empty"),
        ({"preferenceOrder": [{"class": ""}]}, "class is empty"),
        ({"preferenceOrder": [{"class": "a", "score": 101}]}, "score is 101; it must be between 0 and 100"),
        ({"preferenceOrder": [{"class": "a"}], "modelSizes": {"m": "big"}}, "'big' is not a number"),
        ({"preferenceOrder": [{"class": "a", "conditions": [{"priorty": 1}]}]}, "did you mean 'priority'"),
    ],
    "prefix-based-pd-decider": [
        ({"nonCachedTokens": -1}, "nonCachedTokens is -1; it must be 0 or more"),
        ({"promptTokens": -1}, "promptTokens is -1; it must be 0 or more"),
    ],
    "prefix-cache-affinity-filter": [
        ({"affinityThreshold": 1.1}, "affinityThreshold is 1.1; it must be between 0 and 1"),
        ({"explorationProbability": nan}, "explorationProbability is nan"),
        ({"maxTTFTPenaltyMs": -1}, "maxTTFTPenaltyMs is -1; it must be 0 or more"),
        ({"peakPrefillThroughput": 0}, "peakPrefillThroughput is 0; it must be above 0"),
        ({"ttftSource": "dice"}, "'dice' is not known"),
        ({"maxTTFTPenalty": 1}, "unknown .*maxT"),
        ({"peakPrefillThroughput": -1}, "peakPrefillThroughput is -1; it must be 0 or more"),
    ],
    "prefix-cache-scorer": [
        ({"matchLengthWeight": 1.5}, "matchLengthWeight is 1.5; it must be"),
        ({"matchLengthScaleTokens": 0}, "matchLengthScaleTokens is 0; it must be"),
    ],
    "probabilistic-admitter": [
        ({"queueDepthThreshold": 0}, "queueDepthThreshold is 0; it must be"),
        ({"kvCacheUtilThreshold": 0}, "kvCacheUtilThreshold is 0; it must be"),
        ({"power": 0}, "power is 0; it must be"),
        ({"k": -1}, "k is -1; it must be"),
    ],
    "program-aware-fairness": [({"lasHalfLifeSeconds": 1e-9}, "lasHalfLifeSeconds must be 0, or at least 0.001")],
    "request-attribute-reporter": [
        ({"attributes": []}, "attributes has 0 entries; it must have exactly one"),
        (
            {"attributes": [{"key": {"name": "a"}, "expression": "1"}] * 2},
            "attributes has 2 entries; it must have exactly one",
        ),
        ({"attributes": [{"key": {"name": ""}, "expression": "1"}]}, "name is empty; give a name"),
        (
            {"attributes": [{"key": {"name": "a", "namespace": ""}, "expression": "1"}]},
            "namespace is empty; give a name, or leave it out",
        ),
        ({"attributes": [{"key": {"name": "a"}}]}, "expression"),
    ],
    "session-affinity-filter": [
        ({"strategy": "sticky"}, "'sticky' is not known; use 'encoded_endpoint_header', 'session_id'")
    ],
    "slice-fit-scorer": [
        ({"minComputeSlices": 0}, "minComputeSlices is 0; it must be at least 1"),
        ({"minMemory": "much"}, "not a quantity"),
    ],
    "slice-headroom-scorer": [({"mode": "both"}, "both")],
    "taint-scorer": [
        ({"tolerations": [{}]}, "key is empty"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "remove one of them"),
    ],
    "token-producer": [
        ({"vllm": {"url": "http://a", "timeout": "5s"}}, "modelName is missing"),
        ({"udsTokenizerConfig": {}}, "modelName is missing: name the model whose tokens udsTokenizerConfig supplies"),
        ({"modelName": "m", "udsTokenizerConfig": {}, "vllm": {}}, "both vllm and udsTokenizerConfig are set"),
        ({"modelName": "m", "udsTokenizerConfig": {"socketFile": "a"}}, "socketFile is 'a': write an absolute path"),
        ({"modelName": "m", "udsTokenizerConfig": {"socketFile": "/" * 108}}, "socketFile is longer than 107 bytes"),
        ({"modelName": "m", "udsTokenizerConfig": {"socketFile": "/a", "useTCP": True}}, "write host:port"),
        ({"modelName": "m", "udsTokenizerConfig": {"modelTokenizerMap": {"n": "/n"}}}, "not in modelTokenizerMap"),
        ({"estimate": {}, "tokenizer": {"path": "a"}}, "both estimate and tokenizer are set"),
        ({"tokenizer": {"path": ""}}, "path is empty"),
        ({"tokenizer": {"path": "a", "maxBytes": 0}}, "maxBytes is 0; it must be at least 1"),
        ({"modelName": "m", "vllm": {"url": "localhost:8000"}}, "write http:// or https://"),
        ({"modelName": "m", "vllm": {"timeout": "5"}}, "timeout: '5' is not a duration"),
        ({"modelName": "m", "vllm": {"mmTimeout": "0"}}, "mmTimeout is '0': write a duration above 0"),
        ({"budget": "soon"}, "budget: 'soon' is not a duration"),
        ({"estimate": {}, "modelName": "m", "vllm": {}}, "both estimate and vllm are set"),
        ({"estimate": {"image": {"mode": "guess"}}}, "'guess' is not known; use"),
        ({"estimate": {"video": {"frames": {"mode": "all"}}}}, "'all' is not known; use"),
    ],
    "topology-affinity-filter": [
        ({"minAffinity": "row"}, "'row' is not known; use 'host', 'rack', 'zone', 'region'"),
    ],
    "topology-affinity-scorer": [({"weights": {"rack": 2}}, "rack is 2; it must be between 0 and 1")],
    "utilization-detector": [
        ({"queueDepthThreshold": 0}, "queueDepthThreshold is 0; it must be at least 1"),
        ({"kvCacheUtilThreshold": 1.1}, "it must be above 0 and at most 1"),
        ({"metricsStalenessThreshold": "0s"}, "write a duration above 0"),
        ({"metricsStalenessThreshold": "5"}, "metricsStalenessThreshold: '5' is not a duration"),
    ],
    "utilization-filter": [
        ({"conditions": []}, "conditions is empty; list at least one"),
        ({"conditions": [{"metric": "queue", "maxValue": 1}]}, "'queue' is not known; use 'active-requests', "),
        ({"conditions": [{"metric": "waiting-queue", "maxValue": -1}]}, "maxValue is -1; it must be 0 or more"),
        ({"conditions": [{"metric": "waiting-queue", "maxValue": nan}]}, "maxValue is nan; it must be 0 or more"),
    ],
    "weighted-random-picker": [
        ({"topN": -1}, "topN is -1; it must be 0 or more"),
        ({"topN": 2, "maxNumOfEndpoints": 3}, "topN is 2 and maxNumOfEndpoints 3"),
        ({"temperature": 0}, "temperature is 0; it must be between 0.01 and 100"),
    ],
    "work-seconds-detector": [({"maxSeconds": 0}, "maxSeconds is 0; it must be above 0")],
    "work-seconds-scorer": [
        ({"outputTokens": -1}, "outputTokens is -1; it must be 0 or more"),
        ({"kvBarrierSeconds": nan}, "kvBarrierSeconds is nan; it must be 0 or more, and finite"),
        ({"delayWeight": -1}, "delayWeight is -1; it must be 0 or more"),
        ({"attentionQuadraticTokens": -1}, "attentionQuadraticTokens is -1; it must be 0 or more"),
    ],
}


@pytest.mark.parametrize(
    ("plugin_type", "parameters", "sentence"),
    [(plugin_type, *row) for plugin_type, rows in REFUSED.items() for row in rows],
)
def test_parameters_that_mean_nothing_are_refused(plugin_type, parameters, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        Registry().build(plugin_type, parameters, name="mine", clock=ManualClock())
