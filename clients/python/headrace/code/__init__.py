"""A study's program as workers get it: a folder, described by a manifest, in an archive.

    scan the folder → hash its files → a manifest, whose SHA-256 is the digest → an archive → unpack anywhere

The digest identifies the contents of the folder: paths, file contents, whether a file is executable, links.
Times, owners and other mode bits are not part of it, so two copies of a folder have the same digest. Ignored
entries (`ignore`) are not part of it either.

The archive is a plain tar without compression: the declared sizes are the real ones. Its first member is the
manifest. Whoever unpacks it trusts only the digest (`archive`): every member must be the manifest's next entry,
byte for byte.

A file that changes while it is being read is noticed, because each is read twice: for its hash, and into the
archive.
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
