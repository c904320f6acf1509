"""The end of a process of the command line."""

import subprocess
import sys
from pathlib import Path

import pytest

from ortopt.cli.process_end import CommandLineExit

START = "import sys; sys.argv = ['ortopt', *sys.argv[1:]]\nfrom ortopt.cli import main\n"
TELL = "import os\nos._exit = lambda status: print('at once', status)\n"


def run(code: str, *arguments: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, "-c", START + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_threads_end_and_exit_functions_are_called_before_the_end() -> None:
    code = (
        "import atexit, threading\n"
        "atexit.register(lambda: print('at exit'))\n"
        "threading.Thread(target=lambda: (threading.main_thread().join(), print('thread'))).start()\n"
    )
    done = run(f"{code}{TELL}main()", "--version")
    assert done.stdout.splitlines()[1:] == ["thread", "at exit", "at once 0"]
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("loaded", ["import types; sys.modules['onnxruntime'] = types.ModuleType('onnxruntime')", ""])
def test_the_interpreter_frees_what_may_write_then(loaded: str) -> None:
    done = run(f"{loaded}\n{TELL}main()", "--version", python=() if loaded else ("-X", "dev"))
    assert done.stdout.splitlines()[1:] == []
    assert done.returncode == 0


def test_who_catches_the_exit_decides_about_it() -> None:
    code = "try:\n    main()\nexcept SystemExit as stop:\n    print('caught', stop.code)\nsys.exit(5)"
    done = run(code, "--nonsense")
    assert done.stdout == "caught 1\n"
    assert done.returncode == 5


def test_a_profiler_writes_its_figures(tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    subprocess.run(
        [sys.executable, "-m", "cProfile", "-o", figures, "-m", "ortopt", "--version"], check=True, capture_output=True
    )
    assert figures.stat().st_size > 0


@pytest.mark.parametrize(("argument", "code"), [("--version", 0), ("--nonsense", 1)])
def test_the_exit_code_is_that_of_the_command(argument: str, code: int) -> None:
    assert run("main()", argument).returncode == code


def test_a_message_as_exit_code_is_the_interpreters() -> None:
    done = run("from ortopt.cli.process_end import CommandLineExit\nraise CommandLineExit('a message')")
    assert done.stderr == "a message\n"
    assert done.returncode == 1


def test_it_is_a_system_exit() -> None:
    assert isinstance(CommandLineExit(3), SystemExit)
    assert CommandLineExit(3).code == 3
