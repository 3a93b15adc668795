"""The names of a study's folders on every machine."""

import re
from dataclasses import dataclass
from urllib.parse import unquote


def study_folder(name: str, uid: str) -> str:
    """The name of the folders with a study's logs, checkpoints and reports. A study that was deleted and created
    again under the same name has another `uid`, and its own folders.
    """
    return f"{name}-{uid}" if uid else name


_PLACE = re.compile(r"(?P<store>.+)/(?P<study>studies/[^/]+)/(?P<trial>trials/\d+)/[^/]+/?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a checkpoint, read from its address."""

    # The store's URL.
    store: str
    # The study's folder in the store, `studies/{study}-{uid}`.
    study: str
    # The trial's folder in the store, `studies/{study}-{uid}/trials/{number}`.
    trial: str

    @classmethod
    def of(cls, uri: str) -> "Place | None":
        """The place at an address; None for an address that none of our stores gave out, such as one of a user's
        own loop.
        """
        found = _PLACE.fullmatch(uri)
        if found is None or not uri.startswith(("file://", "s3://")):
            return None
        study = unquote(found["study"])
        return cls(store=found["store"], study=study, trial=f"{study}/{found['trial']}")
