# SPDX-License-Identifier: Apache-2.0
"""Connections to engines that CURVE encrypts, with publishers that have real keys."""

from pathlib import Path

import pytest
from zmq.auth import create_certificates, load_certificate

from epp.config import Builder, assemble, load_text
from epp.framework import ConfigurationError, ManualClock
from epp.framework.registry import Registry
from tests.support.documents import blocks
from tests.support.kv_fleet import HASHES, PROMPT, Fleet, build, running
from tests.support.kv_publisher import Publisher, stored
from tests.support.waiting import until

GUIDE = Path(__file__).parents[3] / "docs" / "precise-prefix-caches.md"


def encrypted(folder, server: str = "engine", **more) -> Fleet:
    """Return a fleet of one engine with the key `engine`; the picker expects that of `server`."""
    for name in ("engine", "picker", "other"):
        create_certificates(folder, name)
    one = Publisher("tcp://127.0.0.1:*", curve=load_certificate(folder / "engine.key_secret")[1]).repeat()
    ports = {"socketPort": one.port, "replaySocketPort": int(one.replay_address.rpartition(":")[2])}
    curve = {"serverKeyFile": f"{folder}/{server}.key", **more}
    return Fleet(one.port, [one], 1, kvEventsConfig={"podDiscoveryConfig": ports, "curve": curve})


@pytest.mark.parametrize("has_key", [True, False])
async def test_encrypted_events_and_replays_are_received(tmp_path, has_key):
    world = encrypted(tmp_path, **({"keyFile": f"{tmp_path}/picker.key_secret"} if has_key else {}))
    (one,) = world.publishers
    one.lose(stored(HASHES[:2], PROMPT[:32]))
    async with running(world):
        await one.subscribed()
        await until(lambda: one.asked, "a replay was asked for")
        await world.tell(0, stored(HASHES[2:], PROMPT[32:], parent=HASHES[1]))
        await until(lambda: world.scores() == [1.0], "all blocks are known")


async def test_engine_with_another_key_is_not_believed(tmp_path):
    world = encrypted(tmp_path, server="other")
    async with running(world):
        await until(
            lambda: ("default/p0", "handshake") in [each.labels for each in world.producer.samples], "it is counted"
        )
        assert world.value("kv_cache_events_active_subscribers") == 0


def test_configuration_in_the_guide_reads_the_keys_that_it_names(tmp_path):
    for name in ("engine", "picker"):
        create_certificates(tmp_path, name)
    (text,) = [block.text for block in blocks(GUIDE) if "curve:" in block.text]
    text = text.replace("/etc/epp/curve", str(tmp_path))
    assert assemble(load_text(text), Builder(Registry(), ManualClock(1000.0))).pipeline is not None


@pytest.mark.parametrize(
    ("curve", "reason"),
    [
        ({"serverKeyFile": "PATH/none.key"}, "serverKeyFile: PATH/none.key cannot be read: No such file"),
        ({"serverKeyFile": "PATH/text"}, "serverKeyFile: PATH/text has no line public-key with 40 characters of Z85"),
        ({"serverKeyFile": "PATH/a.key", "keyFile": "PATH/a.key"}, "keyFile: PATH/a.key has no line secret-key"),
    ],
)
def test_file_without_a_key_is_named(tmp_path, curve, reason):
    create_certificates(tmp_path, "a")
    (tmp_path / "text").write_text('public-key = "short"')
    given = {name: path.replace("PATH", str(tmp_path)) for name, path in curve.items()}
    with pytest.raises(ConfigurationError, match=reason.replace("PATH", str(tmp_path))):
        build(kvEventsConfig={"curve": given})


def test_curve_is_refused_beside_a_port_for_engines():
    events = {"curve": {"serverKeyFile": "a.key"}, "zmqEndpoint": "tcp://*:5557"}
    with pytest.raises(ConfigurationError, match="does not encrypt connections to zmqEndpoint; leave one of them out"):
        build(kvEventsConfig=events)
