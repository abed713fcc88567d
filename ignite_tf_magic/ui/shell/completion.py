"""`ignite-tf completion bash|zsh|fish`: the lines by which a shell asks this program what may come next."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ignite_tf_magic.serialization.terminal_text import visible_line
from ignite_tf_magic.ui.completion import candidates

_ASK = "completion words"
_SCRIPTS = {
    "bash": f"""\
_ignite_tf() {{
    local IFS=$'\\n'
    COMPREPLY=($("${{COMP_WORDS[0]}}" {_ASK} "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null))
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
        *whole, beginning = words[1:] or [""]
        for word in candidates(whole, beginning):
            sys.stdout.write(f"{visible_line(word)}\n")
        return 0
    if list(words) in ([], ["-h"], ["--help"]) or words[0] not in _SCRIPTS:
        sys.stdout.write(USAGE)
        return 0 if words[:1] in ([], ["-h"], ["--help"]) else 2
    sys.stdout.write(_SCRIPTS[words[0]])
    return 0
