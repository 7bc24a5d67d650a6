"""Command lines in this process: what a subcommand of `topocomm` prints and ends with."""

from topocomm.cli.main import main


def runs(command):
    """Return the function that runs a subcommand: its status, stdout and stderr."""

    def run(capsys, *words):
        try:
            status = main([command, *words])
        except SystemExit as exit_:
            status = exit_.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def refuses(command):
    """Return the function that gives the one line on stderr of a command line that is turned away with status 2."""
    run = runs(command)

    def refused(capsys, *words):
        status, out, err = run(capsys, *words)
        assert (status, out) == (2, "")
        assert err.count("\n") == 1
        assert err.startswith(f"topocomm {command}: ")
        return err

    return refused
