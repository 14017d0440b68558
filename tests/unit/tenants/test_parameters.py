# SPDX-License-Identifier: Apache-2.0
"""Parameters of tenants: what is refused, where, and with which remedy; a key is never shown."""

import pytest

from epp.framework.errors import ConfigurationError
from tests.support.tenants import build_tenants, sha256

DIGEST = sha256("key")


def tenants(*entries: dict) -> dict:
    return {"tenants": [{"name": f"t{index}", **entry} for index, entry in enumerate(entries)]}


@pytest.mark.parametrize("key", ["SECRET", "sha256:SECRET", DIGEST[:-1], 4242424242, 42424242.5])
def test_plain_key_is_refused_with_the_command_that_makes_the_digest_and_is_not_shown(key):
    with pytest.raises(ConfigurationError) as refused:
        build_tenants(**tenants({}, {"apiKeys": [DIGEST, key]}))
    said = str(refused.value)
    assert said == (
        "tenants[1].apiKeys[1] is not a digest of an API key: write sha256: followed by the output of: printf %s KEY | "
        "sha256sum; keys belong in apiKeyFile"
    )


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        (tenants({"name": "a"}, {"name": "a"}), "tenants[1].name is 'a', the same as tenants[0].name"),
        (
            tenants({"namespaces": ["n"]}, {"namespaces": ["n"]}),
            "tenants[1].namespaces[0] is 'n', the same as tenants[0]",
        ),
        (
            tenants({"fairnessIds": ["f", "f"]}),
            "tenants[0].fairnessIds[1] is 'f', the same as tenants[0].fairnessIds[0]",
        ),
        (tenants({"apiKeys": [DIGEST]}, {"apiKeys": [DIGEST]}), "tenants[1].apiKeys[0] is the same as tenants[0]"),
        (tenants({"name": "default-flow"}), "tenants[0].name is 'default-flow', the fairness id of requests without"),
        (tenants({"name": ""}), "name is empty; give a name"),
        (tenants({"qos": "urgent"}), "'urgent' is not known; use 'low', 'medium', 'high', 'critical'"),
        (tenants({"qos": "high", "highestPriority": 9}), "tenants[0].highestPriority is 9, below its qos high, of"),
        (tenants({"priority": 3, "highestPriority": 2}), "tenants[0].highestPriority is 2, below its priority 3"),
        ({"default": {"priority": 1, "highestPriority": 0}}, "default.highestPriority is 0, below its priority 1"),
        ({**tenants({"name": "a"}), "default": {"name": "a"}}, "default.name is 'a', the name of a tenant"),
        ({"qosPriorities": {"low": 0}}, "low is 0 and medium is 0: give low the lower priority"),
        ({"qosPriorities": {"high": 200}}, "high is 200 and critical is 100"),
        ({"apiKeyHeaders": ["x-key", "authorization: Bearer"]}, "apiKeyHeaders[1] is not a header name"),
        ({"namespaceHeader": "x namespace"}, "namespaceHeader is not a header name: write only the name"),
        ({"apiKeyHeaders": ["X-Request-Id"], "removeApiKey": True}, "apiKeyHeaders[0] is 'X-Request-Id', which cannot"),
        ({"unknown": "refuse"}, "'refuse' is not known; use 'Allow', 'Refuse'"),
        (tenants({"apiKey": [DIGEST]}), "unknown key"),
        ({"apiKeyFile": "/nowhere/keys.yaml"}, "apiKeyFile: '/nowhere/keys.yaml': cannot be read"),
    ],
)
def test_parameters_that_fit_no_tenant_are_refused(parameters, problem):
    with pytest.raises(ConfigurationError) as refused:
        build_tenants(**parameters)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("parameters", "warning"),
    [
        (tenants({}), "tenant 't0' cannot be identified: add apiKeys, namespaces or fairnessIds, such as fairnessIds"),
        (tenants({"namespaces": ["n"]}), "namespaces have no effect without namespaceHeader"),
        (
            {**tenants({"apiKeys": [DIGEST]}), "apiKeyHeaders": []},
            "API keys have no effect, because apiKeyHeaders is empty",
        ),
    ],
)
def test_parameters_without_effect_are_warned_of(parameters, warning):
    (said,) = build_tenants(**parameters).warnings
    assert said.startswith(warning)


def test_nothing_is_said_of_what_has_an_effect():
    given = tenants({"apiKeys": [DIGEST]}, {"fairnessIds": ["f"]}, {"namespaces": ["n"]})
    assert build_tenants(**given, namespaceHeader="x-ns").warnings == []
