"""`ignite-tf completion bash|zsh|fish`: the lines by which a shell asks this program what may come next."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from ignite_tf_magic.ui.completion import candidates

_ASK = "completion words"
# Caches and runs are named by whoever reaches the cluster. zsh and fish quote what they insert; bash inserts what it
# gets, and would then read it as a command, but inside of quotes. The loop is one that bash 3.2 knows, which macOS has;
# so is compopt not, without which a file may be offered, or a space set, where none belongs.
_SCRIPTS = {
    "bash": f"""\
_ignite_tf() {{
    local found all word="${{COMP_WORDS[COMP_CWORD]}}"
    COMPREPLY=()
    all="$("${{COMP_WORDS[0]}}" {_ASK} "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null)" ||
        compopt +o default 2>/dev/null
    while IFS= read -r found; do
        [[ -z $found ]] && continue
        [[ $found == */ ]] && compopt -o nospace 2>/dev/null
        [[ $word == [\\'\\"]* ]] || printf -v found %q "$found"
        COMPREPLY+=("$found")
    done <<< "$all"
}}
complete -o default -F _ignite_tf ignite-tf
""",
    "zsh": f"""\
#compdef ignite-tf
_ignite_tf() {{
    local -a found directories
    local answer; answer="$("${{words[1]}}" {_ASK} "${{(@)words[2,CURRENT]}}" 2>/dev/null)"
    local no_files=$?
    found=(${{(f)answer}}); directories=(${{(M)found:#*/}}); found=(${{found:#*/}})
    compadd -a found
    compadd -S '' -a directories
    (( $#found + $#directories + no_files )) || _files
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
    """Print a shell's lines, or, asked by them, what may come next; the last word is the beginning of it.

    Returns the exit code: 1 where nothing but these words may come, not even a file.
    """
    if words[:1] == ["words"]:
        *whole, beginning = [_as_meant(word) for word in words[1:]] or [""]
        # bash hands `--option=value` over as three words, and wants the third.
        whole = [word for word in whole if word != "="]
        found = candidates(whole, "" if beginning == "=" else beginning)
        for word in found.words:
            sys.stdout.write(f"{word}\n")
        return 0 if found.or_files else 1
    if list(words) in ([], ["-h"], ["--help"]) or words[0] not in _SCRIPTS:
        sys.stdout.write(USAGE)
        return 0 if words[:1] in ([], ["-h"], ["--help"]) else 2
    sys.stdout.write(_SCRIPTS[words[0]])
    return 0


def _as_meant(word: str) -> str:
    """Return a word as it is meant: shells hand it over as it is typed, in quotes that may be open, or backslashes."""
    for quote in "'\"":
        if word.startswith(quote):
            return word[1:].removesuffix(quote)
    return re.sub(r"\\(.)", r"\1", word)
