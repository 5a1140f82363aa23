from __future__ import annotations

import sys
import threading
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fakeredis import TcpFakeServer
from hypothesis.database import DirectoryBasedExampleDatabase

from conformance.errors import UsageError
from conformance.running import databases
from conformance.running.databases import ARTIFACT, check_database, open_databases, shown


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "a\0b", "ftp://host/x", "http://host", "redis://", "redis://host/x", "redis://host:a/0",
        "redis://:99999999", "redis://[::1", "github:", "github:owner", "github:a/b/c",
        "github:a b/c",
    ],
)  # fmt: skip
def test_what_names_no_database_is_refused(text: str) -> None:
    """One sentence says what is accepted; nothing is opened for that."""
    with pytest.raises(UsageError, match=r"^--database"):
        check_database(text)


@pytest.mark.parametrize(
    "text",
    [
        "folder",
        "a/b.c",
        "redis://host",
        "redis://:secret@host:1/2",
        "rediss://host/0",
        "github:a-b/c.d",
    ],
)
def test_what_names_one_is_taken(text: str) -> None:
    """Folders, servers and repositories."""
    check_database(text)


def test_passwords_are_not_shown() -> None:
    """A sentence about a server ends up in logs."""
    assert shown("redis://me:secret@host:1/2") == "redis://…@host:1/2"
    assert shown("redis://host:1/2") == "redis://host:1/2"
    assert "secret" not in shown("redis://me:secret@[::1")
    with pytest.raises(UsageError) as refused:
        check_database("redis://me:secret@host/x")
    assert "secret" not in str(refused.value)


def test_a_folder_is_made(tmp_path: Path) -> None:
    """What is kept there is read by the next run."""
    for expected in ([], [b"value"]):
        opened = open_databases([str(tmp_path / "new" / "folder")])
        assert opened is not None
        assert list(opened.database.fetch(b"key")) == expected
        opened.database.save(b"key", b"value")
    assert open_databases([]) is None


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """A path that cannot become a folder is refused before anything runs."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is no folder that can be written"):
        open_databases([str(tmp_path / "file")])


def test_a_server_shares_what_failed() -> None:
    """What one machine keeps on a Redis server, another one finds and lets go of."""
    server = TcpFakeServer(("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        text = f"redis://127.0.0.1:{server.server_address[1]}/0"
        first, second = open_databases([text]), open_databases([text])
        assert first is not None
        assert second is not None
        first.database.save(b"key", b"value")
        assert list(second.database.fetch(b"key")) == [b"value"]
        second.database.delete(b"key", b"value")
        assert list(first.database.fetch(b"key")) == []
        for opened in (first, second):
            opened.database.redis.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_server_that_does_not_answer_is_bad_input() -> None:
    """Nobody listens at port 1."""
    with pytest.raises(UsageError, match="cannot be reached: "):
        open_databases(["redis://127.0.0.1:1/0"])


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has no client is told what to install."""
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setitem(sys.modules, "hypothesis.extra.redis", None)
    with pytest.raises(UsageError, match=r"pip install 'attention-conformance\[redis\]'"):
        open_databases(["redis://127.0.0.1:1/0"])


def test_an_artifact_is_read_and_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a workflow has uploaded is run; new failures go to the other folder that is named."""
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", str(tmp_path / "home"))
    DirectoryBasedExampleDatabase(tmp_path / "night").save(b"key", b"value")
    cache = tmp_path / "home" / "github-artifacts" / "owner" / "name" / ARTIFACT
    cache.mkdir(parents=True)
    stamp = datetime.now(UTC).isoformat().replace(":", "_")
    with zipfile.ZipFile(cache / f"{stamp}.zip", "w") as made:
        for path in sorted((tmp_path / "night").rglob("*")):
            made.write(path, path.relative_to(tmp_path / "night"))
    opened = open_databases([str(tmp_path / "local"), "github:owner/name"])
    assert opened is not None
    assert opened.notes == ()
    assert list(opened.database.fetch(b"key")) == [b"value"]
    opened.database.save(b"key", b"new")
    assert set(opened.database.fetch(b"key")) == {b"value", b"new"}
    assert list(DirectoryBasedExampleDatabase(tmp_path / "local").fetch(b"key")) == [b"new"]


def test_an_artifact_that_is_not_there_yet_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first night has nothing to read: the run goes on and its record says so."""
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(
        "hypothesis.database.GitHubArtifactDatabase._fetch_artifact", lambda _self: None
    )
    opened = databases.open_databases(["github:owner/name"])
    assert opened is not None
    (note,) = opened.notes
    assert note.startswith("--database github:owner/name brings no failures: ")
    assert list(opened.database.fetch(b"key")) == []
