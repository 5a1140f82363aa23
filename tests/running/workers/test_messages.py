from __future__ import annotations

from email.message import Message

import pytest

from conformance.running.workers import messages
from conformance.running.workers.messages import package_version, project_url


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
