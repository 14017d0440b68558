# SPDX-License-Identifier: Apache-2.0
"""The only writable store of endpoints and their data."""

from epp.routing.datastore.ledger import Flow, Ledger, Place, Ticket, Work
from epp.routing.datastore.shared_work import SharedWork
from epp.routing.datastore.slots import Change, by_id
from epp.routing.datastore.store import Datastore

__all__ = ["Change", "Datastore", "Flow", "Ledger", "Place", "SharedWork", "Ticket", "Work", "by_id"]
