"""Stores of failing problems between runs: databases of hypothesis, named by a text.

``path/to/folder``, ``redis://host:port/number`` (``rediss://`` with TLS) or ``github:OWNER/REPO``,
the read-only artifact of a repository's workflow. Several databases are all read, and written where
possible.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

from ..base.files import user_path
from ..errors import UsageError

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

OPTION: Final = "--database"
FORMS: Final = "a folder, redis://HOST[:PORT][/NUMBER] or github:OWNER/REPO"
PREFIX: Final = b"attention-conformance:"
ARTIFACT: Final = "conformance-examples"
_REDIS: Final = ("redis", "rediss")
_REPOSITORY: Final = re.compile(r"github:([\w.-]+)/([\w.-]+)", re.ASCII)
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+-]+)://", re.IGNORECASE)
_SECONDS: Final = 5.0


def check_database(text: str) -> None:
    """Require a text that names a database; raises UsageError. Opens nothing."""
    scheme = _SCHEME.match(text)
    if scheme is not None:
        if scheme[1].lower() not in _REDIS:
            msg = f"{OPTION} {shown(text)}: no database is reached by {scheme[1]}://; give {FORMS}"
            raise UsageError(msg)
        _check_redis(text)
    elif text.startswith("github:"):
        if _REPOSITORY.fullmatch(text) is None:
            msg = f"{OPTION} {text!r} names no repository: write github:OWNER/REPO"
            raise UsageError(msg)
    elif not text.strip() or "\0" in text:
        msg = f"{OPTION} {text!r} names no database: give {FORMS}"
        raise UsageError(msg)


def is_on_this_machine(text: str) -> bool:
    """Tell whether a text names a folder: invisible to other machines."""
    return not _SCHEME.match(text) and not text.startswith("github:")


def _check_redis(text: str) -> None:
    try:
        parts = urlsplit(text)
        _ = parts.port  # which it reads only now
    except ValueError as error:
        msg = f"{OPTION} {shown(text)} is no URL: {error}"
        raise UsageError(msg) from None
    number = parts.path.strip("/")
    if not parts.hostname or (number and not number.isdecimal()):
        msg = f"{OPTION} {shown(text)} names no database: write redis://HOST[:PORT][/NUMBER]"
        raise UsageError(msg)


def shown(text: str) -> str:
    """The text of a database without its password."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return text.partition("://")[0] + "://…"
    if parts.scheme not in _REDIS or "@" not in parts.netloc:
        return text
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"…@{host}"))


@dataclass(frozen=True, kw_only=True)
class OpenDatabase:
    """An opened database, with sentences on missing entries."""

    database: ExampleDatabase
    notes: tuple[str, ...] = ()


def open_databases(texts: Sequence[str]) -> OpenDatabase | None:
    """Open the databases named by texts as one; raises UsageError for an unusable database.

    A missing artifact gives a note and is read as empty.
    """
    from hypothesis.database import MultiplexedDatabase  # noqa: PLC0415 (on demand)

    for text in texts:
        check_database(text)
    opened = [_open(text) for text in texts]
    if not opened:
        return None
    notes = tuple(note for each in opened for note in each.notes)
    every = [each.database for each in opened]
    return OpenDatabase(
        database=MultiplexedDatabase(*every) if every[1:] else every[0], notes=notes
    )


def keep(texts: Sequence[str], entries: Sequence[tuple[bytes, bytes]]) -> None:
    """Write (key, value) entries into the databases named by texts."""
    opened = open_databases(texts) if entries else None
    if opened is not None:
        for entry in entries:
            with contextlib.suppress(Exception):  # a database that went away disturbs no run
                opened.database.save(*entry)


def _open(text: str) -> OpenDatabase:
    if _SCHEME.match(text):
        return OpenDatabase(database=_redis(text))
    repository = _REPOSITORY.fullmatch(text)
    if repository is not None:
        return _github(repository[1], repository[2])
    return OpenDatabase(database=_folder(user_path(text)))


def _folder(path: Path) -> ExampleDatabase:
    from hypothesis.database import DirectoryBasedExampleDatabase  # noqa: PLC0415 (on demand)

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"{OPTION} {path} is no folder that can be written: {error.strerror or error}"
        raise UsageError(msg) from None
    if not os.access(path, os.W_OK | os.X_OK):
        msg = f"{OPTION} {path} is no folder that can be written: permission denied"
        raise UsageError(msg)
    return DirectoryBasedExampleDatabase(path)


def _redis(text: str) -> ExampleDatabase:
    try:
        from hypothesis.extra.redis import RedisExampleDatabase  # noqa: PLC0415 (an extra)
        from redis import Redis  # noqa: PLC0415 (an extra)
        from redis.exceptions import RedisError  # noqa: PLC0415 (an extra)
    except ImportError:
        msg = (
            f"{OPTION} {shown(text)} needs the redis package: "
            "pip install 'attention-conformance[redis]'"
        )
        raise UsageError(msg) from None
    try:
        client = Redis.from_url(text, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS)
        client.ping()
    except (RedisError, OSError, ValueError) as error:
        msg = f"{OPTION} {shown(text)} cannot be reached: {_said(error)}"
        raise UsageError(msg) from None
    return RedisExampleDatabase(client, key_prefix=PREFIX)


def _said(error: Exception) -> str:
    """Return the first line of a client's exception."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _github(owner: str, repository: str) -> OpenDatabase:
    """Open a repository's latest artifact, read with the token in GITHUB_TOKEN."""
    from hypothesis.database import GitHubArtifactDatabase, ReadOnlyDatabase  # noqa: PLC0415

    # By default all repositories share one folder, and their artifacts would be confused.
    home = os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY") or ".hypothesis"
    cache = Path(home) / "github-artifacts" / owner / repository / ARTIFACT
    shared = GitHubArtifactDatabase(owner, repository, ARTIFACT, path=cache)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            list(shared.fetch(b""))  # which loads the artifact, once
            said = [str(warning.message).strip() for warning in caught]
        except (OSError, ValueError, KeyError) as error:  # what the service or the disk answers
            said = [_said(error)]
            shared = GitHubArtifactDatabase(owner, repository, ARTIFACT, path=cache)
            shared._disabled = True  # noqa: SLF001 (or every clause would try it again)
    name = f"github:{owner}/{repository}"
    notes = (f"{OPTION} {name} brings no failures: {said[0].rstrip('.')}",) if said else ()
    return OpenDatabase(database=ReadOnlyDatabase(shared), notes=notes)
