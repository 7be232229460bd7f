"""``fastloader completion``: a script with which a shell completes this command line."""

import argparse
from typing import Any

from fastloader.cli._report import Report

__all__ = ["add_parser", "run"]

# Static, from the parser: a script that asked Python at each key would wait for torch.
_SCRIPT = """\
_fastloader() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" options
  case "${{COMP_WORDS[1]}}" in
{cases}
    *) options="{commands}" ;;
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then options="{commands}"; fi
  COMPREPLY=($(compgen -W "$options" -- "$word"))
  if [ "$COMP_CWORD" -gt 1 ] && [ "${{word#-}}" = "$word" ]; then
    COMPREPLY+=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _fastloader fastloader
"""

_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the subcommand's arguments.

    Args:
        subparsers: What `argparse.ArgumentParser.add_subparsers` gave.
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "completion",
        help="print a script for the completion of a shell",
        description=(
            "Print a script that lets a shell complete commands and options. In ~/.bashrc or "
            '~/.zshrc: eval "$(fastloader completion bash)".'
        ),
    )
    parser.add_argument("shell", choices=("bash", "zsh"))
    return parser


def run(arguments: argparse.Namespace) -> Report:
    """Write the script."""
    commands = _commands(arguments.parser)
    cases = "\n".join(
        f'    {name}) options="{" ".join(_words(parser))}" ;;'
        for name, parser in commands.items()
    )
    script = _SCRIPT.format(cases=cases, commands=" ".join(commands))
    if arguments.shell == "zsh":
        script = _ZSH + script
    return Report(script.rstrip(), {"shell": arguments.shell, "script": script})


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    [subparsers] = [
        action
        for action in parser._actions  # noqa: SLF001 - argparse has no other list of them
        if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
    ]
    return dict(subparsers.choices)


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options of a subcommand, and the words that its places take."""
    words: list[str] = []
    for action in parser._actions:  # noqa: SLF001
        words += action.option_strings or map(str, action.choices or ())
    return words
