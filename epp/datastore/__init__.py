"""The only writable home of endpoints and what is known of them."""

from epp.datastore.ledger import Credit, Ledger, Ticket
from epp.datastore.store import Change, Datastore

__all__ = ["Change", "Credit", "Datastore", "Ledger", "Ticket"]
