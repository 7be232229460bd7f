"""``fastloader completion``: a script with which a shell completes this command line."""

import argparse

from fastloader.cli._report import Report

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "print a script for the completion of a shell"
DESCRIPTION = (
    "Print a script that lets a shell complete commands and options. In ~/.bashrc or "
    '~/.zshrc: eval "$(fastloader completion bash)"; in config.fish: fastloader completion fish '
    "| source."
)

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

_CASE = '    {name}) options="{words}" ;;'

_FISH = """\
complete -c fastloader -f -n __fish_use_subcommand -a "{commands}"
{cases}
"""
_FISH_CASE = 'complete -c fastloader -F -n "__fish_seen_subcommand_from {name}" {words}'

_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("shell", choices=("bash", "fish", "zsh"))


def run(arguments: argparse.Namespace) -> Report:
    """Write the script."""
    commands = _commands(arguments.parser)
    is_fish = arguments.shell == "fish"
    case, form = (_FISH_CASE, _as_fish_has_it) if is_fish else (_CASE, str)
    cases = "\n".join(
        case.format(name=name, words=" ".join(map(form, _words(parser))))
        for name, parser in commands.items()
    )
    script = (_FISH if is_fish else _SCRIPT).format(cases=cases, commands=" ".join(commands))
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


def _as_fish_has_it(word: str) -> str:
    if word.startswith("--"):
        return f"-l {word[2:]}"
    return f"-s {word[1:]}" if word.startswith("-") else f"-a {word}"
