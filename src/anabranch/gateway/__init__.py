"""An OpenAI-compatible server that forks and joins behind the API.

The way of a request: :mod:`routes` → :mod:`bodies` (checked) → :mod:`asking` (setups) →
:mod:`tickets` (admitted) → :mod:`answers` (decoded) → :mod:`shapes` (written) → :mod:`serving`
(streamed, settled). Terminating TLS for the public, and scaling out, are left to what stands in
front of it.
"""

from anabranch.gateway.app import create_app
from anabranch.gateway.asking import Defaults, Model
from anabranch.gateway.errors import ApiError
from anabranch.gateway.serving import Service
from anabranch.gateway.tickets import Ledger, Observer, Observers, OpenLedger, Spent, Ticket

__all__ = [
    "ApiError",
    "Defaults",
    "Ledger",
    "Model",
    "Observer",
    "Observers",
    "OpenLedger",
    "Service",
    "Spent",
    "Ticket",
    "create_app",
]
