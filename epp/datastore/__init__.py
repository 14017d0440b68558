"""The only writable home of endpoints and what is known of them."""

from epp.datastore.ledger import Ledger, Ticket
from epp.datastore.store import Change, Datastore

__all__ = ["Change", "Datastore", "Ledger", "Ticket"]
