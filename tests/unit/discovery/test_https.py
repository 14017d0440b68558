# SPDX-License-Identifier: Apache-2.0
"""Endpoints that speak HTTPS, as they are written."""

from pathlib import Path

import pytest

from epp.framework.datalayer import Unresolved
from epp.pool.discovery import FileDiscovery, StaticDiscovery, parse_targets
from epp.pool.discovery.endpoints_file import FileDiscoveryParameters, parse_targets_file


def test_file_says_it_as_scheme():
    text = b"""endpoints:
    - {name: a, address: gpu, port: 443, scheme: https}
    - {name: b, address: gpu, port: 80, scheme: http}
    - {name: c, address: gpu, port: 81, scheme: }
    """
    assert [target.tls for target in parse_targets_file(text, Path("e.yaml")).value] == [True, False, False]


@pytest.mark.parametrize("scheme", ["HTTPS", "h2"])
def test_other_scheme_in_a_file_is_refused(scheme):
    text = f"endpoints: [{{name: a, address: gpu, port: 443, scheme: {scheme}}}]".encode()
    with pytest.raises(ValueError, match=r"scheme: .* is not known; use .http., .https."):
        parse_targets_file(text, Path("e.yaml"))


async def test_scheme_reaches_the_endpoint_with_its_name(pool, names):
    names.table["gpu"] = ["10.0.0.1"]
    await StaticDiscovery(parse_targets("a=https://gpu:443,b=10.0.0.2:80"), lookup=names).start(pool)
    assert [(endpoint.host, endpoint.tls) for endpoint in pool.endpoints] == [("gpu", True), ("", False)]


async def test_endpoints_without_an_address_are_named_until_they_have_one(pool, names, tmp_path):
    path = tmp_path / "endpoints.yaml"
    path.write_text(
        "endpoints: [{name: a, address: gpu, port: 443, scheme: https}, {name: b, address: 10.0.0.2, port: 1}]"
    )
    of_file = FileDiscovery(FileDiscoveryParameters(path=str(path)), lookup=names)
    of_flag = StaticDiscovery(parse_targets("a=https://gpu:443,b=10.0.0.2:80"), lookup=names)
    for discovery in (of_file, of_flag):
        names.table.pop("gpu", None)
        await discovery.start(pool)
        (left_out,) = discovery.unresolved
        assert left_out == Unresolved("default/a", "gpu", left_out.reason, tls=True)
        assert left_out.reason
        names.table["gpu"] = ["10.0.0.1"]
        await discovery.resolver.refresh(pool)
        assert discovery.unresolved == ()
        del names.table["gpu"]
        await discovery.resolver.refresh(pool)
        assert discovery.unresolved == ()  # it keeps its address
