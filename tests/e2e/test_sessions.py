# SPDX-License-Identifier: Apache-2.0
"""A session stays with the server that served it first, however busy that is, for as long as it is there."""

import base64

import pytest

from tests.support.config_files import endpoints_file, picker_config, with_pool
from tests.support.waiting import until
from tests.support.world import World, open_world, pool_of

AFFINITY = "x-session-token"
SESSION = "x-session-id"
BY_SESSION = picker_config("""
plugins:
- type: session-affinity-filter
  parameters: PARAMETERS
- type: session-id-producer
  parameters: {cookieName: chat}
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins: [{pluginRef: session-affinity-filter}, {pluginRef: queue-scorer}]
""")
BY_TOKEN = BY_SESSION.replace("PARAMETERS", "{}")
BY_ID = BY_SESSION.replace("PARAMETERS", "{strategy: session_id}")
BY_COOKIE = BY_SESSION.replace(
    "PARAMETERS", "{strategy: session_id, sessionIdConfig: {sources: [{attribute: session-id}]}}"
)


async def ask(world: World, prompt: str, headers: dict[str, str] | None = None) -> tuple[str, str | None]:
    """Return who answered, and the token that the response carries, if any."""
    answered = await world.headers(prompt, extra_headers=headers)
    return answered["x-sim-server"], answered.get(AFFINITY)


async def burden(world: World, server: str) -> None:
    """Load a server so that nobody goes there who need not."""
    await world.settled()
    await world.occupy(server, waiting=50)
    assert {(await ask(world, f"unrelated {i}"))[0] for i in range(4)} == world.sims.keys() - {server}


async def test_token_of_a_response_leads_back_to_its_server(simulated):
    sims = await simulated("a", "b", "c")
    async with open_world(endpoints=pool_of(sims), sims=sims, config=BY_TOKEN) as world:
        await world.scraped()
        home, token = await ask(world, "first")
        assert token == base64.b64encode(f"default/{home}".encode()).decode()
        await burden(world, home)
        for turn in range(5):
            assert await ask(world, f"turn {turn}", {AFFINITY: token}) == (home, token)
        elsewhere, other_token = await ask(world, "no token")
        assert elsewhere != home
        assert other_token != token
        assert (await ask(world, "not a token", {AFFINITY: "#"}))[0] != home


@pytest.mark.parametrize(
    ("config", "turns", "others"),
    [
        (BY_ID, [{SESSION: "s-1"}, {SESSION: "s-1"}], [{SESSION: "s-2"}]),
        (
            BY_COOKIE,
            [{"cookie": "theme=dark; chat=s-1"}, {"cookie": "chat=s-1; theme=light"}],
            [{"cookie": "chat=s-2"}, {SESSION: "s-1"}],
        ),
    ],
    ids=["header", "cookie"],
)
async def test_session_that_the_client_names_stays_where_it_was_placed(simulated, config, turns, others):
    sims = await simulated("a", "b", "c")
    async with open_world(endpoints=pool_of(sims), sims=sims, config=config) as world:
        await world.scraped()
        home, token = await ask(world, "first", turns[0])
        assert token is None
        await burden(world, home)
        assert {(await ask(world, f"turn {i}", turns[1]))[0] for i in range(5)} == {home}
        for headers in others:
            assert (await ask(world, "another session", headers))[0] != home


async def test_session_is_placed_anew_when_its_server_leaves_and_stays_there(simulated, tmp_path):
    sims = await simulated("a", "b")
    whole = {name: (sim.address, {}) for name, sim in sims.items()}
    pool = endpoints_file(tmp_path / "endpoints.yaml", **whole)
    async with open_world(sims=sims, config=with_pool(BY_ID, pool)) as world:
        await world.scraped()
        home, _ = await ask(world, "first", {SESSION: "s-1"})
        (stays,) = sims.keys() - {home}

        endpoints_file(pool, **{stays: whole[stays]})
        await until(lambda: world.available == {stays}, "the session's server has left")
        assert (await ask(world, "homeless", {SESSION: "s-1"}))[0] == stays

        endpoints_file(pool, **whole)
        await until(lambda: world.available == set(whole), "it is back")
        await world.scraped()
        await world.occupy(stays, waiting=50)
        assert (await ask(world, "at home now", {SESSION: "s-1"}))[0] == stays
