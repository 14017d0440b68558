# SPDX-License-Identifier: Apache-2.0
"""Warnings about clients are few, and those left out are counted."""

from structlog.testing import capture_logs

from epp.grpc_http2.complaints import Complaints


def test_flood_of_warnings_is_cut_and_counted():
    complaints = Complaints()
    with capture_logs() as logs:
        for _ in range(100):
            complaints.warn("broken", 1000.0, peer="x")
        complaints.warn("broken", 1005.0, peer="y")  # one more in five seconds
        complaints.warn("broken", 1010.0, peer="z")
    assert [entry["peer"] for entry in logs] == ["x"] * 20 + ["y", "z"]
    assert [entry.get("warnings_left_out") for entry in logs] == [None] * 20 + [80, None]
