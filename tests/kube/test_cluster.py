# SPDX-License-Identifier: Apache-2.0
"""The cluster of these tests is a real one: it refuses, forgets and comes back as clusters do."""

import pytest
from cluster.client import RefusedError


async def test_pod_has_the_address_it_was_given_and_is_ready(space):
    pod = await space.pod("a", "127.0.0.9", labels={"app": "vllm"})
    assert pod["status"]["podIP"] == "127.0.0.9"
    assert {"type": "Ready", "status": "True"}.items() <= pod["status"]["conditions"][3].items()


async def test_terminating_pod_stays_until_it_is_deleted(space):
    pod = await space.terminate(await space.pod("a", "127.0.0.9"))
    assert "deletionTimestamp" in pod["metadata"]
    await space.delete(pod)
    with pytest.raises(RefusedError, match="404 NotFound"):
        await space.admin.get(pod)
