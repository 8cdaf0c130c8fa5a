"""`python -m qworker`: the same as the command `qworker`.

Comes from:  the interpreter.
Goes to:     qworker.cli.main.
Thread:      main.
"""

from qworker.cli.main import main

if __name__ == "__main__":
    main(prog_name="qworker")
