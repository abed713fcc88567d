"""`ignite-tf completion bash|zsh|fish`: the lines by which a shell asks this program what may come next."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from ignite_tf_magic.ui.completion import candidates

_ASK = "completion words"
# Caches and runs are named by whoever reaches the cluster. zsh and fish quote what they insert; bash inserts what it
# gets, and would then read it as a command. The loop is one that bash 3.2 knows, which macOS has.
_SCRIPTS = {
    "bash": f"""\
_ignite_tf() {{
    local found
    COMPREPLY=()
    while IFS= read -r found; do
        printf -v found %q "$found"
        COMPREPLY+=("$found")
    done < <("${{COMP_WORDS[0]}}" {_ASK} "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null)
}}
complete -o default -F _ignite_tf ignite-tf
""",
    "zsh": f"""\
#compdef ignite-tf
_ignite_tf() {{
    local -a found
    found=(${{(f)"$("${{words[1]}}" {_ASK} "${{(@)words[2,CURRENT]}}" 2>/dev/null)"}})
    if (( $#found )); then compadd -a found; else _files; fi
}}
compdef _ignite_tf ignite-tf
""",
    "fish": f"""\
complete -c ignite-tf -a '(ignite-tf {_ASK} (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}
USAGE = """\
usage: ignite-tf completion bash|zsh|fish
  bash: eval "$(ignite-tf completion bash)" in ~/.bashrc
  zsh:  eval "$(ignite-tf completion zsh)" in ~/.zshrc, behind compinit
  fish: ignite-tf completion fish > ~/.config/fish/completions/ignite-tf.fish
"""


def complete(words: Sequence[str]) -> int:
    """Print a shell's lines, or, asked by them, what may come next; the last word is the beginning of it."""
    if words[:1] == ["words"]:
        *whole, beginning = [_without_backslashes(word) for word in words[1:]] or [""]
        for word in candidates(whole, beginning):
            sys.stdout.write(f"{word}\n")
        return 0
    if list(words) in ([], ["-h"], ["--help"]) or words[0] not in _SCRIPTS:
        sys.stdout.write(USAGE)
        return 0 if words[:1] in ([], ["-h"], ["--help"]) else 2
    sys.stdout.write(_SCRIPTS[words[0]])
    return 0


def _without_backslashes(word: str) -> str:
    """Return a word as it is meant: shells hand it over as it is typed, or as they have quoted it."""
    return re.sub(r"\\(.)", r"\1", word)
