from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from conformance.base.files import check_distinct, check_writable, parse_toml, staged, write_text
from conformance.base.record import record_text
from conformance.errors import UsageError

TEXT = "one\ntwo \\u00e9\n"


@pytest.mark.parametrize("text", ["a = {}", "a = [1, {{ b = {} }}]", "[a]\nb = -{}"])
def test_whole_numbers_of_more_than_64_bits_are_refused(text: str) -> None:
    """TOML has none, and no size, count or value can be that large."""
    with pytest.raises(UsageError, match="a whole number in it has more than 64 bits"):
        parse_toml(text.format("1" + "0" * 400), Path("x.toml"))
    assert parse_toml(text.format(2**63 - 1), Path("x.toml"))


def test_writing_replaces_in_one_step(tmp_path: Path) -> None:
    """The new file takes the old one's place and nothing else is left in the folder."""
    path = tmp_path / "out.json"
    path.write_text("old", encoding="utf-8")
    write_text(TEXT, path)
    assert path.read_text(encoding="utf-8") == TEXT
    assert os.listdir(tmp_path) == ["out.json"]  # noqa: PTH208 (names are all that matters)


def test_failed_writing_keeps_the_old_file(tmp_path: Path) -> None:
    """A record that cannot be written leaves the old one, and no temporary file."""
    path = tmp_path / "out.json"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(ValueError, match="Out of range"):
        write_text(record_text({"schema": math.nan}), path)
    assert path.read_text(encoding="utf-8") == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]


def test_a_place_that_becomes_unwritable(tmp_path: Path) -> None:
    """A folder that went away during the run is said in one sentence."""
    with pytest.raises(UsageError, match=r"out.json cannot be written: No such file or directory"):
        write_text(TEXT, tmp_path / "gone" / "out.json")


def test_unwritable_places_are_refused(tmp_path: Path) -> None:
    """Folders, and files in folders that do not exist, are refused before anything runs."""
    with pytest.raises(UsageError, match="is a folder: name a file"):
        check_writable(tmp_path, "--json")
    with pytest.raises(UsageError, match="cannot be written: there is no folder"):
        check_writable(tmp_path / "absent" / "out.json", "--json")
    check_writable(tmp_path / "out.json", "--json")
    assert not list(tmp_path.iterdir())


def test_devices_are_written_to(tmp_path: Path) -> None:
    """A pipe or device is written to, not replaced by a file."""
    check_writable(Path(os.devnull), "--json")
    if Path("/dev/full").exists():
        with pytest.raises(UsageError, match=r"--json /dev/full cannot be written: No space left"):
            check_writable(Path("/dev/full"), "--json")
    write_text(TEXT, Path(os.devnull))
    assert not Path(os.devnull).is_file()
    assert not list(tmp_path.iterdir())


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    """Two options that name one file would lose the first: bad input, however it is spelt."""
    files = {
        "--json": tmp_path / "out",
        "--html": None,
        "--markdown": tmp_path / "x" / ".." / "out",
    }
    with pytest.raises(UsageError, match="--json and --markdown name the same file"):
        check_distinct(files)
    check_distinct({"--json": Path(os.devnull), "--html": Path(os.devnull)})


def test_the_working_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that takes its place would leave the shell in none; others that are empty go."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is the folder that you are in"), staged(Path()):
        pass
    assert tmp_path.samefile(Path.cwd())
    (tmp_path / "empty").mkdir()
    with staged(Path("empty")) as folder:
        (folder / "made").touch()
    assert (tmp_path / "empty" / "made").exists()


@pytest.mark.parametrize(("name", "says"), [("x" * 300, "too long"), ("loop", "go in circles")])
def test_paths_that_the_system_refuses(tmp_path: Path, name: str, says: str) -> None:
    """Whatever is asked of them first, one sentence names the option and the reason."""
    path = tmp_path / name
    if name == "loop":
        path.symlink_to(path)
    with pytest.raises(UsageError, match=f"--json .*{says}"):
        check_distinct({"--json": path})
    with pytest.raises(UsageError, match=f"--json .*{says}"):
        check_writable(path, "--json")
    with pytest.raises(UsageError, match=says), staged(path):
        pass
    with pytest.raises(UsageError, match=says):
        write_text(TEXT, path)
