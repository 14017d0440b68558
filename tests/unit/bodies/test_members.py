# SPDX-License-Identifier: Apache-2.0
"""Objects with too many members are given up, so that no response blocks others."""

import pytest

from epp.routing.bodies.members import MOST_MEMBERS, MemberScanner, Wanted

WANTED = Wanted.named("usage")


@pytest.mark.parametrize("member", [b'"usage":"a",', b'"usage":1,', rb'"\u0061":1,'])
def test_object_of_too_many_members_that_are_read_one_by_one_is_given_up(member):
    scanner = MemberScanner(WANTED)
    marks = scanner.feed(b"{" + member * (MOST_MEMBERS - 1) + b'"usage":2}')
    assert scanner.complete
    assert marks[-1] - marks[-2] == 1
    scanner = MemberScanner(WANTED)
    marks = scanner.feed(b"{" + member * (2 * MOST_MEMBERS) + b'"usage":2}')
    assert scanner.invalid
    assert len(marks) <= 2 * MOST_MEMBERS


def test_members_that_are_not_wanted_do_not_count():
    scanner = MemberScanner(WANTED)
    scanner.feed(b"{" + b'"a":{"b":[1]},' * (2 * MOST_MEMBERS) + b'"usage":2}')
    assert scanner.complete
