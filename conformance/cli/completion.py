"""``conformance completion``: clauses, mistakes, targets and files, in three shells.

Completion runs at every press of the key: it reads files and imports no torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, Final

import click
from click.shell_completion import (
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

from ..targets.target_strings import names_defined_in
from ._help import Command

Completed = list[CompletionItem[str]]
Complete = Callable[[click.Context, click.Parameter, str], Completed]
_CLAUSES: Final = Path(__file__).resolve().parent.parent / "clauses"
# The names of mistakes, of which many are put together by code that needs torch.
_MISTAKES: Final = Path(__file__).resolve().with_name("mistakes.txt")
_SLUG: Final = re.compile(r'^(?:@clause|    Row)\(\s*"([^"]+)"', re.MULTILINE)
_VARIABLE: Final = "_CONFORMANCE_COMPLETE"
_PROGRAM: Final = "conformance"


def written_slugs() -> list[str]:
    """The slugs of the clauses of this distribution, read where they are written."""
    texts = (file.read_text(encoding="utf-8") for file in sorted(_CLAUSES.glob("*.py")))
    return [slug for text in texts for slug in _SLUG.findall(text)]


def complete_clauses(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> Completed:
    """The matching families and clauses; clauses alone once a dot is typed."""
    slugs = written_slugs()
    families = dict.fromkeys(slug.partition(".")[0] for slug in slugs)
    return _beginning(incomplete, slugs if "." in incomplete else [*families, *slugs])


def complete_explained(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> Completed:
    """Matching clauses and families, and after the first letter mistakes, too."""
    mistakes = _MISTAKES.read_text(encoding="utf-8").split() if incomplete else []
    return [*complete_clauses(context, parameter, incomplete), *_beginning(incomplete, mistakes)]


def complete_targets(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> Completed:
    """Files, and behind the colon what the file, or the module, defines."""
    where, colon, begun = incomplete.rpartition(":")
    if not colon:
        return complete_files(_context, _parameter, incomplete)
    names = (name for name in names_defined_in(where) if begun or not name.startswith("_"))
    return _beginning(incomplete, (f"{where}:{name}" for name in names))


def complete_files(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> Completed:
    """Files and folders, which the shell finds."""
    return [CompletionItem(incomplete, type="file")]


def _beginning(incomplete: str, words: Iterable[str]) -> Completed:
    return [CompletionItem(word) for word in dict.fromkeys(words) if word.startswith(incomplete)]


class _Bash(ShellComplete):
    """Bash breaks words at colons and equals signs, and completes the last piece alone."""

    name: ClassVar[str] = "bash"
    source_template: ClassVar[str] = """\
%(complete_func)s() {
    local IFS=$'\\n' response line
    response=$(env COMP_WORDS="${COMP_LINE:0:$COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \
%(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    for line in $response; do
        if [[ ${line%%%%,*} == file ]]; then compopt -o default
        elif [[ ${line%%%%,*} == dir ]]; then compopt -o dirnames
        else COMPREPLY+=("${line#*,}"); fi
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the completed word, and the typed part of the completed word."""
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)
        begun = words.pop() if words and not line[-1:].isspace() else ""
        return words[1:], begun

    def format_completion(self, item: CompletionItem[str]) -> str:
        """The kind and the part of a word that bash has not yet taken."""
        word = str(item.value)
        taken = word.rpartition(":")[0]
        if taken and ":" in os.environ.get("COMP_WORDBREAKS", ":"):
            word = word[len(taken) + 1 :]
        return f"{item.type},{word}"


_SHELLS: Final[dict[str, type[ShellComplete]]] = {
    "bash": _Bash,
    "zsh": ZshComplete,
    "fish": FishComplete,
}
add_completion_class(_Bash)


@click.command(
    name="completion",
    cls=Command,
    examples=(
        ('eval "$(conformance completion bash)"', "In ~/.bashrc"),
        ('eval "$(conformance completion zsh)"', "In ~/.zshrc, below compinit"),
        ("conformance completion fish | source", "In ~/.config/fish/config.fish"),
    ),
)
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion_command(context: click.Context, *, shell: str) -> int:
    """Write what lets a shell complete clauses, targets, options and files."""
    root = context.find_root().command
    click.echo(_SHELLS[shell](root, {}, _PROGRAM, _VARIABLE).source(), nl=False)
    return 0
