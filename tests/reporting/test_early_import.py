"""What reports are printed with is imported in the background, or not at all, and then whoever prints is told."""

import subprocess
import sys

BEGIN = "import sys\nfrom ortopt.reporting import report\nfrom ortopt.system import threads\n"
END = "report.import_early()\nfor thread in threads.running(): thread.join()\n"


def output(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_it_is_there_before_it_is_needed() -> None:
    code = f"{BEGIN}before = 'rich.console' in sys.modules\n{END}print(before, 'rich.console' in sys.modules)"
    assert output(code) == "False True\n"


def test_whoever_prints_is_told_that_it_is_not_there() -> None:
    told = "try:\n    report.console(sys.stdout)\nexcept ImportError:\n    print('told')"
    assert output(f"{BEGIN}sys.modules['rich.console'] = None\n{END}{told}") == "told\n"


def test_no_thread_is_no_error() -> None:
    broken = 'def start(*_): raise RuntimeError("can\'t start new thread")\nthreads._thread.start_new_thread = start\n'
    assert output(f"{BEGIN}{broken}{END}print('rich' in sys.modules)") == "False\n"
