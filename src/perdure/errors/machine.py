"""What the machine does not give."""

from __future__ import annotations

from perdure.errors.base import PerdureError


class StoreError(PerdureError):
    """Raised when the store cannot do what was asked for a reason of the machine's; nothing of it was committed."""

    code = "store_unavailable"
    status = 503


class StoreInUse(StoreError):
    """Raised when a data folder is opened while another process has it open."""

    code = "store_in_use"


class StoreFull(StoreError):
    """Raised when the disk or quota under the store is full; nothing of the command was committed."""

    code = "store_full"


class StoreReadOnly(StoreError):
    """Raised when the data folder or its database cannot be written by this user."""

    code = "store_read_only"


class StoreCorrupt(StoreError):
    """Raised when the database file is damaged or is no database."""

    code = "store_corrupt"


class StoreTooNew(StoreError):
    """Raised when a store was written by a newer Perdure; it is left unchanged."""

    code = "store_too_new"


class NotSupported(PerdureError):
    """Raised when a backend or store cannot do what was asked, and says so."""

    code = "not_supported"
    status = 501


class ProcessStartFailed(PerdureError):
    """Raised when a session's process cannot be started; its input stays queued."""

    code = "process_start_failed"
    status = 503


class Unavailable(PerdureError):
    """Raised when the server is stopping or cannot be reached; retry with the same idempotency key."""

    code = "unavailable"
    status = 503


class AddressUnavailable(PerdureError):
    """Raised when the server cannot listen where it was told to: port in use, address not of this machine."""

    code = "address_unavailable"
    status = 503
