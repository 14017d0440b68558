# SPDX-License-Identifier: Apache-2.0
"""Addresses of Redis and Valkey, and the arguments that redis-py gets for them."""

import pytest

from epp.runtime.addresses import RedisAddress


@pytest.mark.parametrize(
    ("text", "place", "name"),
    [
        ("store", {"host": "store", "port": 6379, "db": 0}, "redis://store:6379/0"),
        ("valkey://store:7000/2", {"host": "store", "port": 7000, "db": 2}, "redis://store:7000/2"),
        ("unix:///run/store.sock?db=3", {"unix_socket_path": "/run/store.sock", "db": 3}, "unix:///run/store.sock"),
        (
            "redis+sentinel://one,two:7000,[::1]:7001/state",
            {"sentinels": [("one", 26379), ("two", 7000), ("::1", 7001)], "service_name": "state", "db": 0},
            "redis+sentinel://one:26379,two:7000,[::1]:7001/state/0",
        ),
        (
            "valkey+sentinel://me:a%2Fb@one/state/4",
            {"sentinels": [("one", 26379)], "service_name": "state", "db": 4},
            "redis+sentinel://one:26379/state/4",
        ),
    ],
)
def test_address_is_a_place_and_a_name_without_password(text, place, name):
    address = RedisAddress(text)
    assert {key: value for key, value in address.connection({}).items() if key in place} == place
    assert address.name == name


def test_password_is_that_of_the_server_and_tls_is_for_sentinels_too():
    address = RedisAddress("rediss+sentinel://me:a%2Fb@one/state", ca_file="ca.pem")
    found = address.connection({})
    assert (found["username"], found["password"], found["ssl"], found["ssl_ca_certs"]) == ("me", "a/b", True, "ca.pem")
    client = address.client(1.0)
    (sentinel,) = client.connection_pool.sentinel_manager.sentinels
    for each in (client, sentinel):
        assert "SSL" in each.connection_pool.connection_class.__name__
    assert sentinel.connection_pool.connection_kwargs["password"] is None


@pytest.mark.parametrize(
    ("text", "user", "password"),
    [
        ("redis://store", "someone", "secret"),
        ("redis://me@store", "me", "secret"),
        ("redis://:own@store", None, "own"),
        ("redis://me:own@store", "me", "own"),
    ],
)
def test_environment_supplies_what_the_address_does_not_say(text, user, password):
    found = RedisAddress(text).connection({"EPP_REDIS_USERNAME": "someone", "EPP_REDIS_PASSWORD": "secret"})
    assert (found["username"], found["password"]) == (user, password)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "redis://[::1",
            "http://store",
            "redis://",
            "redis://store:port",
            "redis://store/one",
            "unix://",
            "unix:///a?db=b",
        ),
        *("redis+sentinel://one", "redis+sentinel:///state", "redis+sentinel://one:port/state"),
        *("redis+sentinel://one,/state", "redis+sentinel://one/state/database"),
    ],
)
def test_other_texts_are_refused_without_being_shown(text):
    with pytest.raises(ValueError, match=r"^--shared-state is not an address; write redis://host:6379/0"):
        RedisAddress(text).connection({})


@pytest.mark.parametrize("scheme", ["redis+cluster", "rediss+cluster", "valkey+cluster"])
def test_cluster_is_refused_with_what_to_write_instead(scheme):
    with pytest.raises(ValueError, match=r"clusters are not supported; write redis://host:6379/0 for one server, or"):
        RedisAddress(f"{scheme}://me:s3cret@one:6379,two:6379").connection({})


def test_authorities_need_tls():
    with pytest.raises(ValueError, match="--shared-state-ca-file needs an address that begins with rediss"):
        RedisAddress("redis+sentinel://one/state", ca_file="ca.pem").connection({})
