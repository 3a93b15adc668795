"""Proofs that a lease was issued: an HMAC of its id, with a secret stored in the database.

A worker that holds an attempt which the database never issued shows that the database was restored from a copy
(`store.lineage`), and all running trials start new attempts. So no worker may invent such an attempt. Each lease
that is assigned carries a proof. The worker passes it on when it names what it holds, and a lease without one
shows nothing.

A copy of the database has the secret too, so it accepts what was issued after the copy was made. Every replica
reads the same secret, which never changes: someone who knows a proof can only repeat what was issued.
"""

import hashlib
import hmac
from dataclasses import dataclass, field

from headrace.v1.event_pb2 import LeaseRef

_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class Proofs:
    """Makes and checks proofs."""

    secret: bytes = field(repr=False)

    def of(self, lease_id: str) -> str:
        """The proof of a lease, in hex."""
        return hmac.new(self.secret, lease_id.encode(), hashlib.sha256).hexdigest()[:_CHARACTERS]

    def hold(self, lease: LeaseRef) -> bool:
        """Whether a lease was issued by this database, or by the one that it is a copy of."""
        return hmac.compare_digest(self.of(lease.lease_id).encode(), lease.proof.encode())
