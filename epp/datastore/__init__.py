# SPDX-License-Identifier: Apache-2.0
"""The only writable store of endpoints and their data."""

from epp.datastore.ledger import Credit, Flow, Ledger, Place, Ticket, Work
from epp.datastore.slots import Change, by_id
from epp.datastore.staging import Staging
from epp.datastore.store import Datastore

__all__ = ["Change", "Credit", "Datastore", "Flow", "Ledger", "Place", "Staging", "Ticket", "Work", "by_id"]
