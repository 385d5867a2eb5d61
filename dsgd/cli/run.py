"""dsgd-run: check the configuration, run the experiment, keep its record.

Imports neither Hydra nor torch before the command line has been looked at.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsgd.cli.arguments import one_line, parsed, version_line
from dsgd.host.signals import interruptible
from dsgd.host.stop import EXIT_CONFIG, EXIT_INTERRUPTED

if TYPE_CHECKING:
    from dsgd.cli.compose import ConfigTree


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 (also for a diverged run, which is a result), 1 for a failed run, 2 for a bad
    configuration, 130 if one of STOP_SIGNALS has ended it early."""
    as_called = sys.argv
    arguments = list(as_called[1:] if argv is None else argv)
    try:
        with interruptible(ends_process=argv is None) as interruption:
            options = parsed(arguments)
            if options.version:
                print(version_line())
                return 0
            from dsgd.cli.compose import ConfigTree

            tree = ConfigTree(options.config_dir, options.config_name)
            if options.help or options.cfg or options.shell_completion:
                _show(tree, options)
                return 0
            if not options.multirun:
                from dsgd.cli.jobs import run_single

                return run_single(tree, options, arguments, interruption)
            from dsgd.cli.local_sweep import run_sweep
            from dsgd.data.own_sets import sharing

            with sharing({}):
                return run_sweep(tree, options, arguments, interruption)
    except ValueError as error:
        print(one_line(error), file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        sys.argv = as_called


def _show(tree: ConfigTree, options: Namespace) -> None:
    """Print the help, the configuration, or a shell's completions. Raises ConfigError."""
    if options.help:
        from dsgd.cli.key_list import help_text

        print(help_text(tree, options.overrides))
    elif options.cfg:
        print(tree.text(options.overrides, options.resolve), end="")
    else:
        tree.complete(options.overrides)


if __name__ == "__main__":
    sys.exit(main())
