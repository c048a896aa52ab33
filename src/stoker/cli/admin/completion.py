"""Print the completion script for bash, zsh or fish.

bash: eval "$(stoker completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc, after compinit.
fish: stoker completion fish > ~/.config/fish/completions/stoker.fish
"""

from __future__ import annotations

import os

from stoker.cli import output
from stoker.cli.options import parse
from stoker.client.errors import UsageError

USAGE = ("completion bash | zsh | fish",)
OPTIONS = ()
SHELLS = ("bash", "zsh", "fish")


def main(argv: list[str]) -> int:
    """Print the script for a shell, by default the user's."""
    args = parse(OPTIONS, argv, verb="completion")
    name = args.words[0] if args.words else os.path.basename(os.environ.get("SHELL", ""))
    if name not in SHELLS or len(args.words) > 1:
        raise UsageError("No shell given. Write: stoker completion bash, zsh or fish")
    path = os.path.join(os.path.dirname(__file__), "completions", f"stoker.{name}")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if args.flag("json"):
        return output.emit({"shell": name, "script": text})
    print(text, end="")
    return 0
