"""A study's program as workers get it: a folder, described by a manifest, in an archive.

    scan the folder → hash its files → a manifest, whose SHA-256 is the digest → an archive → unpack anywhere

The digest names what is in the folder: paths, contents, whether a file is executable, links. Times, owners and other
mode bits are no part of it, so two copies of a folder have one digest. Nor is what is ignored (`ignore`).

The archive is a plain tar, not compressed: what it declares is what it holds. Its first member is the manifest. Whoever
unpacks it trusts the digest alone (`archive`): every member must be the manifest's next entry, byte for byte.

A file that changes while it is read is noticed, for each is read twice: for its hash, and into the archive.
"""

from headrace.code.archive import unpack, verify, write_archive
from headrace.code.folder import Folder, read_folder
from headrace.code.git import Revision, revision_of
from headrace.code.manifest import MOST_BYTES, MOST_ENTRIES, CodeCorruptError, Entry, Kind, Manifest

__all__ = [
    "MOST_BYTES",
    "MOST_ENTRIES",
    "CodeCorruptError",
    "Entry",
    "Folder",
    "Kind",
    "Manifest",
    "Revision",
    "read_folder",
    "revision_of",
    "unpack",
    "verify",
    "write_archive",
]
