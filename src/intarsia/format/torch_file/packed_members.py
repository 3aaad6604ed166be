"""What the members of any zip archive hold, however they are packed (NumPy's `savez_compressed`, a zip tool)."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from zipfile import ZipFile, ZipInfo

from intarsia.errors import FormatError, IntarsiaError, UnsupportedError
from intarsia.format.torch_file.zip_directory import BROKEN_ZIP, opened

_PART_BYTES = 1 << 20


def content_of(archive: ZipFile, member: ZipInfo) -> Iterator[bytes]:
    """What a member holds, a part at a time; raise where it cannot be unpacked or has another checksum.

    A way of packing that this Python does not know is an `UnsupportedError`.
    """
    try:
        with archive.open(member) as held:
            while part := held.read(_PART_BYTES):
                yield part
    except (IntarsiaError, MemoryError):
        raise
    except RuntimeError as error:  # encrypted, or packed in a way that Python does not know
        raise UnsupportedError(f"{member.filename}: {error}") from error
    except (OSError, Exception) as error:  # each way of packing has errors of its own
        said = str(error) or type(error).__name__
        raise FormatError(f"{member.filename} cannot be unpacked: {said}") from error


def members_held(data: bytes) -> dict[str, str] | None:
    """A digest of what each member holds; None where that cannot be said, or the bytes are no archive."""
    if not data.startswith(b"PK"):
        return None

    def read(at: int, size: int) -> bytes:
        return data[at : at + size]

    found: dict[str, str] = {}
    try:
        with opened(read, len(data)) as archive:
            for member in archive.infolist():
                whole = sha256()
                for part in content_of(archive, member):
                    whole.update(part)
                if found.setdefault(member.filename, digest := whole.hexdigest()) != digest:
                    return None
    except (IntarsiaError, *BROKEN_ZIP):
        return None
    return found
