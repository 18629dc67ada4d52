"""What the gateway remembers: keys, budgets, reservations, the audit chain, answers' contents.

One interface over SQLAlchemy: SQLite for one host, PostgreSQL for several. Decisions about requests
are made in :mod:`ledger`; here is only what is kept, and that it is kept right when processes race,
die, or lose the database for a while.
"""

from anabranch.gateway.store.audit import AuditTrail, Content
from anabranch.gateway.store.budgets import Budget, Budgets, Over
from anabranch.gateway.store.database import Database, StoreError
from anabranch.gateway.store.keys import Key, Keys

__all__ = [
    "AuditTrail",
    "Budget",
    "Budgets",
    "Content",
    "Database",
    "Key",
    "Keys",
    "Over",
    "StoreError",
]
