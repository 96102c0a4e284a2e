"""The command line: ``pagemill generate``, ``chat``, ``serve``, ``info``, ``bench``.

    app        parse and run; bench has the benchmarks
    failures   what went wrong, as an exit code and a line on standard error
    options    the options that commands share; option_groups makes them typer's
    defaults   what a command takes where the user says nothing
    prompts    what the user asked for, as jobs
    streaming  run jobs on an engine, tell a listener            (no input or output of its own)
    writers    listeners: text as it comes, JSON lines, a bar

Answers go to standard output and everything else to standard error. Importing this package, and
showing help, imports no torch.
"""

EXIT_INTERRUPTED = 130
"""What shells report for a process that Ctrl-C ended."""


def main() -> int:
    """Run this process's command line; returns the exit code."""
    try:
        from pagemill.cli.app import run  # inside: Ctrl-C may come while it is being imported

        return run()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
