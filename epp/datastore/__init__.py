# SPDX-License-Identifier: Apache-2.0
"""The only writable store of endpoints and their data."""

from epp.datastore.ledger import Credit, Ledger, Ticket
from epp.datastore.store import Change, Datastore, by_id

__all__ = ["Change", "Credit", "Datastore", "Ledger", "Ticket", "by_id"]
