"""``nri-warmup completion SHELL``: made from the verbs' own parsers, so it cannot fall behind them."""

from __future__ import annotations

import argparse

from nri_warmup.cli import main as cli

_PROG = "nri-warmup"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def _options(verb: str) -> list[tuple[str, str]]:
    """(option, help) of one verb."""
    actions = cli.parser_for(verb)._actions
    return [
        (option, (a.help or "").replace("%%", "%"))
        for a in actions
        for option in a.option_strings
        if option[:2] == "--"
    ]


def _bash() -> str:
    cases = "\n".join(
        f'    {verb}) COMPREPLY+=($(compgen -W "{" ".join(o for o, _ in _options(verb))}" -- "$cur"));;'
        for verb in cli.VERBS
    )
    return f"""# bash completion for {_PROG}: eval "$({_PROG} completion bash)"
_nri_warmup() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} verb=${{COMP_WORDS[1]-}}
  if [ "$COMP_CWORD" = 1 ]; then COMPREPLY=($(compgen -W "{" ".join(cli.VERBS)}" -- "$cur")); return; fi
  COMPREPLY=()
  case $cur in -*) ;; *) COMPREPLY=($(compgen -f -- "$cur")); return;; esac
  case $verb in
{cases}
  esac
}}
complete -o filenames -F _nri_warmup {_PROG}
"""


def _zsh() -> str:
    return (
        f'# zsh completion for {_PROG}: eval "$({_PROG} completion zsh)"\nautoload -U +X bashcompinit && bashcompinit\n'
        + _bash()
    )


def _fish() -> str:
    lines = [f"# fish completion for {_PROG}: {_PROG} completion fish | source"]
    first = "not __fish_seen_subcommand_from " + " ".join(cli.VERBS)
    for verb, text in cli.VERBS.items():
        lines.append(f"complete -c {_PROG} -n {first!r} -f -a {verb} -d {text!r}")
        lines += [
            f"complete -c {_PROG} -n '__fish_seen_subcommand_from {verb}' -l {option[2:]} -d {help_text!r}"
            for option, help_text in _options(verb)
        ]
    return "\n".join(lines) + "\n"


def run(args: argparse.Namespace) -> int:
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](), end="")
    return cli.OK
