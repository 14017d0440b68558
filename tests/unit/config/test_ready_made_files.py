# SPDX-License-Identifier: Apache-2.0
"""Every file in config/ loads, says when to use it, and routes."""

from pathlib import Path

import pytest

from epp.config import Builder, assemble, default_config, load_file
from epp.framework import ManualClock, Producer, Request, RequestBody
from epp.framework.registry import Registry
from epp.framework.testing import candidates

FILES = sorted((Path(__file__).parents[3] / "config").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_loads_and_routes_and_says_when_to_use_it(path):
    text = path.read_text()
    assert "# When: " in text
    assert "# Trade: " in text
    assembly = assemble(load_file(path), Builder(Registry(), ManualClock()))
    pool = candidates(waiting=[5, 0, 5], running=[9, 1, 9], kv_usage=[0.9, 0.1, 0.9], in_flight=[3, 0, 3])
    request = Request("r", RequestBody(model="m", prompt=b"hello" * 100, prompt_tokens=125))
    for producer in assembly.pipeline.of(Producer):
        producer.produce(request, pool)
    target = assembly.pipeline.scheduler.schedule(request, pool).targets[0]
    assert target.name == "e1" or path.stem in {"random", "round-robin"}


def test_adaptive_file_is_what_runs_without_a_configuration():
    (path,) = [path for path in FILES if path.stem == "adaptive"]
    assert load_file(path).model == default_config().model
