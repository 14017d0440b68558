# SPDX-License-Identifier: Apache-2.0
"""Warnings about clients are limited for each host and in total; omitted ones are counted."""

from structlog.testing import capture_logs

from epp.extproc.http2.limits import RateLimitedLog


def test_flood_of_warnings_is_cut_and_counted():
    warnings = RateLimitedLog()
    with capture_logs() as logs:
        for port in range(100):
            warnings.warn("broken", 1000.0, peer=f"ipv4:10.0.0.1:{port}")
        warnings.warn("broken", 1005.0, peer="ipv4:10.0.0.1:200")  # one more in five seconds
        warnings.warn("broken", 1010.0, peer="ipv4:10.0.0.1:201")
    assert len(logs) == 22
    assert [entry.get("warnings_left_out") for entry in logs] == [None] * 20 + [80, None]
    assert logs[-1]["peer"] == "ipv4:10.0.0.1:201"


def test_each_host_has_a_budget_of_its_own():
    warnings = RateLimitedLog()
    with capture_logs() as logs:
        for port in range(1000):
            warnings.warn("broken", 1000.0, peer=f"ipv4:10.0.0.1:{port}")
        warnings.warn("broken", 1000.0, peer="ipv6:[fd00::1]:1")
        warnings.warn("unfinished", 1000.0)
    assert [entry["event"] for entry in logs] == ["broken"] * 21 + ["unfinished"]
    assert "peer" not in logs[-1]


def test_many_hosts_have_one_budget_together_and_few_of_them_are_remembered():
    warnings = RateLimitedLog()
    hosts = [f"ipv4:10.0.{n // 256}.{n % 256}:1" for n in range(2000)]
    with capture_logs() as logs:
        for host in hosts:
            warnings.warn("broken", 1000.0, peer=host)
        warnings.warn("broken", 1001.0, peer="ipv4:10.9.9.9:1")
    assert len(logs) == 201
    kept = 256
    assert logs[-1]["warnings_left_out_elsewhere"] == len(hosts) + 1 - 200 - kept


def test_host_that_is_seen_again_is_not_forgotten():
    warnings = RateLimitedLog()
    with capture_logs() as logs:
        for number in range(255 * 3):
            warnings.warn("broken", 1000.0, peer="ipv4:10.0.0.1:1")
            warnings.warn("broken", 1000.0 + number, peer=f"ipv4:10.1.{number // 256}.{number % 256}:1")
    assert len([entry for entry in logs if entry["peer"] == "ipv4:10.0.0.1:1"]) <= 20 + 255 * 3 * 0.2
