# SPDX-License-Identifier: Apache-2.0
"""The rows of the hostile campaign, and what its page says of them."""

import random
import re
from pathlib import Path

from all_rows import IN_CI, ROWS
from endings import malformed
from telling import SPELLINGS

from epp.extproc.codec import decode
from epp.framework.headers import CONTROL

PAGE = (Path(__file__).parents[2] / "hostile" / "README.md").read_text()


def test_page_has_each_row_with_its_first_sentence():
    written = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", PAGE.partition("## Rows")[2], re.MULTILINE)
    assert written == [(name, (row.__doc__ or "").partition("\n")[0]) for name, row in ROWS.items()]


def test_short_campaign_leaves_out_few_rows():
    assert len(IN_CI) >= len(ROWS) - 3


def test_24_spellings_of_names_that_are_control_headers():
    assert len(set(SPELLINGS)) == 24
    assert all(CONTROL.has(name.lower()) for name in SPELLINGS)


def test_malformed_streams_are_no_exchanges():
    """None of them is all of the messages of a whole exchange, in order."""
    chance = random.Random(3)
    kinds = set()
    for _ in range(500):
        found = []
        for message in malformed(chance):
            try:
                found.append(decode(message[5:]).WhichOneof("request"))
            except Exception as error:  # noqa: BLE001  any that decoding has
                found.append(type(error).__name__)
        kinds.add(tuple(found))
    assert ("request_headers", "request_body", "response_headers") not in kinds
    assert len(kinds) > 10
