# SPDX-License-Identifier: Apache-2.0
"""When requests leave the local cluster, with the sample for several clusters."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from epp.framework import PREFIX_MATCH, PROMPT_TOKENS, Headers, PrefixMatch, Producer, Request, RequestBody
from epp.framework.clusters import CLUSTER, ClusterStatus, ClusterTaint, TaintEffect
from epp.framework.testing import candidates, run_scheduling

SAMPLE = Path(__file__).parents[3] / "config" / "multi-cluster.yaml"
GPU = "resource-usage-score/gpuClusterAvailable"


class Cached(Producer):
    """Says where the prompt is cached, as a header tells it."""

    plugin_type = "cached"
    writes = (PREFIX_MATCH,)
    may_read = (PROMPT_TOKENS,)

    def produce(self, request, candidates):
        where = request.headers.get("cached-in")
        total = request.prompt_tokens // 16
        blocks = np.array([total * (str(slot) == where) for slot in range(4)], dtype=np.int32)
        request.put(PREFIX_MATCH, PrefixMatch(blocks, total_blocks=total, block_tokens=16))


def config() -> str:
    found = yaml.safe_load(SAMPLE.read_text())
    found["plugins"].append({"type": "cached"})
    return yaml.safe_dump(found)


def chosen(
    *,
    waiting=(0, 0, 0, 0),
    tokens=(0, 0, 0, 0),
    kv=(0, 0, 0, 0),
    scores=(60, 60),
    taints=(),
    cached_in=None,
    prompt=160,
) -> str:
    """Return the cluster of the target among two servers in east, the local cluster, and two in west."""
    east = ClusterStatus(cluster="east", local=True, scores={GPU: scores[0]}, taints=taints)
    west = ClusterStatus(cluster="west", scores={GPU: scores[1]})
    load = {"waiting": waiting, "in_flight_tokens": tokens, "kv_usage": kv, "running": [0] * 4}
    pool = candidates(records={CLUSTER: [east, east, west, west]}, **load)
    body = RequestBody(model="m", prompt=b"x" * 4 * prompt, prompt_tokens=prompt)
    request = Request("r", body, headers=Headers([("cached-in", str(cached_in))]))
    target = run_scheduling(config(), pool, request, plugins=[Cached]).targets[0].name
    return "east" if target in {"e0", "e1"} else "west"


@pytest.mark.parametrize(
    ("situation", "cluster"),
    [
        ({}, "east"),  # all alike
        ({"scores": (-60, 100)}, "east"),  # fewer GPUs are free, but some are
        ({"scores": (-81, 20)}, "west"),  # hardly any is
        ({"waiting": (2, 0, 0, 0)}, "east"),  # a server of the local cluster has no queue
        ({"waiting": (2, 2, 0, 0)}, "west"),  # none is without
        ({"waiting": (2, 2, 0, 0), "cached_in": 0}, "west"),  # what is cached is computed sooner than a request ends
        ({"tokens": (2000, 2000, 0, 0), "prompt": 4000}, "east"),  # a prompt of half the length is computed there
        ({"tokens": (9000, 9000, 0, 0), "prompt": 4000}, "west"),
        ({"tokens": (9000, 9000, 0, 0), "prompt": 4000, "cached_in": 0}, "east"),  # the cache is worth the wait
        ({"waiting": (6, 6, 0, 0), "kv": (0.6, 0.6, 0, 0), "cached_in": 0}, "west"),  # not that one
        ({"cached_in": 2}, "east"),  # the other cluster has the prompt; the local one computes it as soon
        ({"cached_in": 2, "prompt": 4000}, "west"),  # that prompt takes a while
        ({"taints": (ClusterTaint(key="k", effect=TaintEffect.NO_SELECT),)}, "west"),
        ({"taints": (ClusterTaint(key="k", effect=TaintEffect.PREFER_NO_SELECT),), "scores": (0, 20)}, "west"),
    ],
)
def test_request_stays_in_its_cluster_until_score_or_load_say_otherwise(situation, cluster):
    assert chosen(**situation) == cluster
