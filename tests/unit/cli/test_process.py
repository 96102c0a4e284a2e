"""Promises about a whole process: start-up, signals, pipes. On the simulated engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from pagemill import __version__
from tests.unit.cli.conftest import start

SIMULATED = "tests.unit.cli.simulated"
LONG = ("generate", "-p", "hello", "--max-tokens", "900", "--ignore-eos")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["generate", "--help"], []])
def test_help_and_version_import_no_torch(arguments: list[str]) -> None:
    program = (
        "import sys; from pagemill.cli import main\n"
        f"sys.argv = ['pagemill', *{arguments!r}]\n"
        "code = main()\n"
        "assert code == 0, code\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (__version__ if "--version" in arguments else "Usage: pagemill") in done.stdout


def test_a_tokens_text_is_written_when_it_comes() -> None:
    process = start(SIMULATED, *LONG, STEP_SECONDS="0.02")
    assert process.stdout is not None
    assert process.stdout.read(3)
    assert process.poll() is None, "it had to wait for the whole answer"
    process.kill()
    process.communicate()


@pytest.mark.parametrize("more", [(), ("--json",), ("-p", "second")])
def test_ctrl_c_while_generating_is_exit_code_130_and_no_traceback(more: tuple[str, ...]) -> None:
    process = start(SIMULATED, *LONG, *more, STEP_SECONDS="0.02")
    assert process.stdout is not None
    if "--json" in more:
        time.sleep(1.5)
    else:
        assert process.stdout.read(3)
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - asked < 3
    told = "pagemill: interrupted: 0 of 2 answers are complete\n" if "-p" in more else ""
    assert (process.returncode, err) == (130, told)
    assert out.endswith("\n")
    assert ("[2/2] second\n" in out) == ("-p" in more)
    if "--json" in more:
        assert '"finish_reason": "abort"' in out


def test_a_second_ctrl_c_does_not_wait_for_the_step() -> None:
    process = start(SIMULATED, *LONG, STEP_SECONDS="60")
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "")


def test_ctrl_c_in_a_piped_chat_is_exit_code_130_and_no_traceback() -> None:
    arguments = ("chat", "--max-tokens", "900", "--ignore-eos")
    process = start(SIMULATED, *arguments, STEP_SECONDS="0.02")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("hi\n")
    process.stdin.flush()
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "")


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    process = start(SIMULATED, *LONG, STEP_SECONDS="0.005")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=20) == 141
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line(unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", SIMULATED, *LONG],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 1
    message = "cannot write to standard output: No space left on device"
    assert done.stderr == f"pagemill: error: {message}\n"


def test_info_of_a_model_that_leads_nowhere_imports_no_torch() -> None:
    program = (
        "import sys; from pagemill.cli.app import run\n"
        "assert run(['info', 'nope']) == 1\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("pagemill: error: model 'nope' is no alias")
