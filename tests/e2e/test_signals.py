# SPDX-License-Identifier: Apache-2.0
"""Signals to a running picker: SIGHUP reloads, SIGUSR1 and SIGUSR2 do nothing."""

import os
import signal

import pytest

from tests.support.config_files import picker_config
from tests.support.gateways import gateway_of

CONFIG = picker_config("""
plugins: [{{type: {scorer}}}]
""")


@pytest.fixture(autouse=True)
def _hangups_are_not_ignored():
    """Have child processes begin as in a shell, also where nohup started the tests: a picker then ignores SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


async def test_sighup_reloads_the_configuration_and_a_bad_one_is_refused(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(scorer="queue-scorer"))
    flags = f"--config-file={config}", "--watch-config-file=false", "--endpoints=127.0.0.1:9"
    async with gateway_of(*flags) as gateway:
        config.write_text(CONFIG.format(scorer="running-requests-size-scorer"))
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            os.kill(gateway.process.pid, number)
        assert await gateway.total("config_generation") == 1
        os.kill(gateway.process.pid, signal.SIGHUP)
        await gateway.shows(lambda health: health["config"]["generation"] == 2, "the new version is in effect")
        config.write_text(CONFIG.format(scorer="no-such-scorer"))
        os.kill(gateway.process.pid, signal.SIGHUP)
        await gateway.shows(lambda health: "no-such-scorer" in str(health["config"]["refused"]), "it is refused")
        assert await gateway.total("config_generation") == 2
        assert gateway.process.running
