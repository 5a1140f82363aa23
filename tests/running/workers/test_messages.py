from __future__ import annotations

import os
from email.message import Message
from multiprocessing import Pipe

import pytest

from conformance.running.workers import messages
from conformance.running.workers.messages import Inbox, package_version, project_url


def test_what_is_not_installed_has_no_version() -> None:
    """A record can be written without the metadata of a distribution."""
    assert package_version("pytest") != "unknown"
    assert package_version("no-such-distribution") == "unknown"
    assert not project_url("no-such-distribution", "Documentation")


def test_addresses_are_found_by_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the metadata has them: a label, a comma, an address that may have commas."""
    fields = Message()
    fields["Project-URL"] = "Source, https://source.example"
    fields["Project-URL"] = "Documentation, https://docs.example/a,b"
    monkeypatch.setattr(messages, "metadata", lambda _name: fields)
    assert project_url("x", "Documentation") == "https://docs.example/a,b"
    assert not project_url("x", "Changelog")


def test_messages_are_taken_whole() -> None:
    """What has come is there, half a message is not, and the connection can be closed."""
    own, theirs = Pipe()
    inbox = Inbox(own)
    theirs.send_bytes(b"whole")
    os.write(theirs.fileno(), (100).to_bytes(4, "big") + b"half")
    assert inbox.next(5.0) == b"whole"
    with pytest.raises(TimeoutError):
        inbox.next(0.05)
    inbox.close()  # the other end is still open
    with pytest.raises(EOFError):
        inbox.next(5.0)
    with pytest.raises(BrokenPipeError):
        theirs.send_bytes(b"late")
