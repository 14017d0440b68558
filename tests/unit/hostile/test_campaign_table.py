# SPDX-License-Identifier: Apache-2.0
"""The figures of a campaign in its page."""

import importlib.util
import json
from pathlib import Path

_spec = importlib.util.spec_from_file_location("campaign", Path(__file__).parents[3] / "tools" / "campaign.py")
campaign = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(campaign)


def figure(row, name, value, verdict):
    return {"row": row, "name": name, "figure": value, "target": "-", "verdict": verdict}


def test_each_row_has_one_line_with_what_was_seen_and_what_is_wrong():
    figures = [
        figure("resets", "p99 beside it", "6.0 ms", "not judged"),
        figure("resets", "longest beside it", "19.0 ms", "ok"),
        figure("resets", "memory grown after", "200 MiB", "WRONG"),
        figure("reloads", "answered otherwise", "none", "ok"),
    ]
    content = json.dumps({"size": "full", "transport": "asyncio", "figures": figures}).encode()
    said, *_, resets, reloads = campaign.table(content).splitlines()
    assert said == "`--size full --transport asyncio`: 2 rows, 3 figures with a target, 1 wrong."
    assert resets == "| `resets` | 6.0 ms | 19.0 ms | - | - | 200 MiB | 2 | 1 |"
    assert reloads == "| `reloads` | - | - | - | - | - | 1 | 0 |"


def test_page_has_a_place_for_them():
    assert campaign.PLACE.search((campaign.REPOSITORY / campaign.PAGE).read_text())
