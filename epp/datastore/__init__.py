# SPDX-License-Identifier: Apache-2.0
"""The only writable store of endpoints and their data."""

from epp.datastore.ledger import Credit, Ledger, Ticket
from epp.datastore.places import Change, by_id
from epp.datastore.staging import Staging
from epp.datastore.store import Datastore

__all__ = ["Change", "Credit", "Datastore", "Ledger", "Staging", "Ticket", "by_id"]
