"""`ignite-tf completion bash|zsh|fish`: prints the script with which a shell asks this program for completions."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from ignite_tf_magic.ui.completion import candidates

_ASK = "completion words"
# Anybody who reaches the cluster can name caches and runs, so names may contain shell commands. zsh and fish quote the
# words that they insert. bash does not, so its script quotes them unless the person has typed an opening quote. The
# loop works in bash 3.2, which macOS has. bash 3.2 lacks compopt: there, bash may offer files or add spaces wrongly.
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
  zsh:  eval "$(ignite-tf completion zsh)" in ~/.zshrc, after compinit
  fish: ignite-tf completion fish > ~/.config/fish/completions/ignite-tf.fish
"""


def complete(words: Sequence[str]) -> int:
    """Print a shell's script, or the completions for which that script asks; the last word is the unfinished one.

    Returns:
        The exit code. For completions, 1 means that the shell must not offer files as well.
    """
    if words[:1] == ["words"]:
        *whole, beginning = [_as_meant(word) for word in words[1:]] or [""]
        # bash passes `--option=value` as three words, and expects completions of the third one.
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
    """Return a word without shell quotes, which may be open, and backslashes; shells pass words as they are typed."""
    for quote in "'\"":
        if word.startswith(quote):
            return word[1:].removesuffix(quote)
    return re.sub(r"\\(.)", r"\1", word)
