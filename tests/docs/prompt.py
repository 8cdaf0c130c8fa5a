"""A Python prompt for one page: runs the blocks it receives, one after the other, in one namespace.

test_docs sends JSON lines on standard input: {"language", "text", "name"}, and reads JSON lines from
standard output: {"error": text or null}.
"""

import doctest
import io
import json
import sys
import traceback
from contextlib import redirect_stdout


def main() -> None:
    answers = sys.stdout
    namespace = {"__name__": "__main__"}
    sys.path.insert(0, "")
    for line in sys.stdin:
        block = json.loads(line)
        words = io.StringIO()
        error = None
        with redirect_stdout(words):
            try:
                if block["language"] == "pycon":
                    error = dialogue(block, namespace)
                else:
                    exec(compile(block["text"], block["name"], "exec"), namespace)
            except BaseException:  # noqa: BLE001 - reported as at a prompt
                error = traceback.format_exc()
        answers.write(json.dumps({"error": error and f"{error}\n{words.getvalue()}"}) + "\n")
        answers.flush()


def dialogue(block: dict[str, str], namespace: dict[str, object]) -> str | None:
    test = doctest.DocTestParser().get_doctest(block["text"], namespace, block["name"], block["name"], 0)
    test.globs = namespace
    report = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    failed, _ = runner.run(test, out=report.write, clear_globs=False)
    return report.getvalue() if failed else None


if __name__ == "__main__":
    main()
