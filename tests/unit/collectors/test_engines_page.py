# SPDX-License-Identifier: Apache-2.0
"""docs/engines.md names every built-in engine, and the series that are read of it."""

from pathlib import Path

import pytest

from epp.pool.collectors.engine import BUILT_IN, SERIES_PREFIXES

PAGE = (Path(__file__).parents[3] / "docs" / "engines.md").read_text()


@pytest.mark.parametrize("engine", BUILT_IN)
def test_engine_is_on_the_page_with_its_load(engine):
    config = BUILT_IN[engine]
    assert f"`{engine}`" in PAGE
    for spec in filter(None, (config.queued_requests_spec, config.running_requests_spec, config.kv_usage_spec)):
        assert f"`{spec}`" in PAGE


def test_every_built_in_engine_is_recognised_by_a_prefix():
    assert {name for _, _, name in SERIES_PREFIXES} == set(BUILT_IN)
