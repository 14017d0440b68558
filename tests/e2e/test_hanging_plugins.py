# SPDX-License-Identifier: Apache-2.0
"""A plugin that never returns while a configuration is tried: that is an error which names it, and nothing waits."""

import pytest

from tests.support.commands import command
from tests.support.config_files import picker_config
from tests.support.gateways import gateway_of

HANGS = """
from threading import Event
from epp.framework import Scorer

class Hangs(Scorer):
    plugin_type = "hangs"

    def score(self, request, candidates):
        {statement}
"""
CONFIG = picker_config("""
plugins: [{{type: "{scorer}", name: mine}}]
schedulingProfiles: [{{name: default, plugins: [{{pluginRef: mine}}]}}]
""")
PROBLEM = "plugin 'mine' did not return within 5 s"


@pytest.fixture
def hanging(request, tmp_path):
    """A directory with such a plugin, and a configuration that uses it."""
    (tmp_path / "hanging.py").write_text(HANGS.format(statement=getattr(request, "param", "Event().wait()")))
    (tmp_path / "config.yaml").write_text(CONFIG.format(scorer="hanging:Hangs"))
    return tmp_path


@pytest.mark.parametrize("hanging", ["while True: pass"], indirect=True)
async def test_check_ends_and_names_the_plugin(hanging):
    flags = "--allow-plugin-modules=hanging", str(hanging / "config.yaml")
    async with command("check", *flags, PYTHONPATH=str(hanging)) as check:
        assert await check.end() == 1
    assert PROBLEM in str(check)


async def test_reload_is_refused_and_a_later_good_version_applied(hanging):
    config = hanging / "live.yaml"
    config.write_text(CONFIG.format(scorer="queue-scorer"))
    flags = f"--config-file={config}", "--allow-plugin-modules=hanging", "--endpoints=127.0.0.1:9"
    async with gateway_of(*flags, PYTHONPATH=str(hanging)) as gateway:
        config.write_text(CONFIG.format(scorer="hanging:Hangs"))
        await gateway.shows(lambda health: PROBLEM in str(health["config"]["refused"]), "the refusal is shown")
        config.write_text(CONFIG.format(scorer="running-requests-size-scorer"))
        await gateway.shows(lambda health: health["config"]["generation"] == 2, "the good version is in effect")
        gateway.process.terminate()
        await gateway.process.end()
