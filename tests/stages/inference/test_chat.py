"""The chat command: turns from options, from a pipe and from a keyboard (a pty); Ctrl-C; a context that is
full.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from stages.contract.events import ExitCode
from stages.inference.chat import main
from tests.conftest import TinyModel


def _arguments(tiny: TinyModel, *more: str) -> list[str]:
    return ["--model-dir", str(tiny.folder), "--weight", str(tiny.weight), "--device", "cpu", *more]


@pytest.mark.parametrize("path", ["bridge", "fp2"])
def test_a_second_turn_computes_only_what_is_new(
    tiny: TinyModel, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = (
        "--prompt",
        "你是誰" * 19,
        "--followup",
        "我是誰",
        "--max-tokens",
        "5",
        "--timing",
        "--path",
        path,
    )
    assert main(_arguments(tiny, *more)) == ExitCode.OK
    found = re.findall(
        r"turn (\d): (\d+) tokens cached, (\d+) prefilled in ([\d.]+) ms, (\d+) decoded",
        capsys.readouterr().out,
    )
    (_, cached, first, _, _), (_, second_cached, second, _, _) = found
    assert cached == "0" and int(second_cached) >= int(first) and int(second) < int(first) / 2


def test_turns_end_the_conversation(tiny: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--prompt", "一", "--followup", "二", "--followup", "三", "--turns", "2", "--max-tokens", "2")
    assert main(_arguments(tiny, *more)) == ExitCode.OK
    assert re.findall("> (.)", capsys.readouterr().out) == ["一", "二"]


def test_sampling_is_seeded(tiny: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for seed in ("1", "1", "2"):
        main(
            _arguments(
                tiny,
                "--prompt",
                "你好",
                "--max-tokens",
                "20",
                "--temp",
                "5",
                "--top-p",
                "0.95",
                "--seed",
                seed,
            )
        )
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]


@pytest.mark.parametrize(
    "wrong",
    [("--temp", "-1"), ("--temp", "nan"), ("--top-p", "0"), ("--max-tokens", "-3"), ("--path", "sideways")],
)
def test_impossible_numbers_are_refused(
    tiny: TinyModel, wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(_arguments(tiny, *wrong))
    assert ended.value.code == ExitCode.BAD_INPUT and wrong[0] in capsys.readouterr().err


def test_a_turn_longer_than_the_context_is_named(tiny: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(_arguments(tiny, "--prompt", "你好", "--followup", "z9" * 600, "--max-tokens", "2"))
        == ExitCode.BAD_INPUT
    )
    assert re.search(r"turn 2: .* context of 512 \(max_position_embeddings\)", capsys.readouterr().err)


def test_turns_come_through_a_pipe(tiny: TinyModel) -> None:
    line = [sys.executable, "-m", "stages.chat", *_arguments(tiny, "--max-tokens", "3", "--timing")]
    done = subprocess.run(
        line, input="你是誰\n\n談談UFO\n", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == ExitCode.OK, done.stderr
    assert re.findall(r"\[turn (\d)", done.stdout) == ["1", "2"] and ">" not in done.stdout


_SLOW = """
import sys, time, torch
from stages.inference import chat, chat_session

def never_ends(*arguments):
    time.sleep(0.02)
    return torch.tensor([70])

chat_session.sample_tokens = never_ends
sys.exit(chat.main(sys.argv[1:]))
"""


class _Terminal:
    """The chat command at a keyboard."""

    def __init__(self, tiny: TinyModel, *more: str) -> None:
        self._handle, theirs = pty.openpty()
        line = [sys.executable, "-c", _SLOW, *_arguments(tiny, *more)]
        self.process = subprocess.Popen(line, stdin=theirs, stdout=theirs, stderr=theirs, cwd=Path.cwd())
        os.close(theirs)
        self.seen = b""

    def type(self, text: str) -> None:
        os.write(self._handle, text.encode())

    def wait_for(self, word: str, after: int = 0) -> int:
        """Reads until the word has come; returns where it ends."""
        deadline = time.monotonic() + 60
        while (at := self.seen.find(word.encode(), after)) < 0:
            assert time.monotonic() < deadline, self.seen
            self.seen += os.read(self._handle, 4096)
        return at + len(word.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._handle)


def test_ctrl_c_ends_an_answer_and_then_the_program(tiny: TinyModel) -> None:
    text = Tokenizer.from_file(str(tiny.folder / "tokenizer.json")).decode([70])
    chat = _Terminal(tiny, "--max-tokens", "100000", "--timing")
    try:
        at = chat.wait_for("> ")
        chat.type("abc\n")
        at = chat.wait_for(text * 3, chat.wait_for("abc\r\n", at))
        chat.process.send_signal(signal.SIGINT)
        at = chat.wait_for("interrupted]", at)
        at = chat.wait_for("> ", at)
        chat.type("abc\n")
        at = chat.wait_for(text * 3, chat.wait_for("abc\r\n", at))
        chat.process.send_signal(signal.SIGINT)
        at = chat.wait_for("[turn 2: ", at)
        assert not chat.seen[at:].startswith(b"0 tokens"), "the interrupted turn is remembered"
        chat.wait_for("> ", at)
        time.sleep(
            0.5
        )  # a signal between the prompt and the read is seen at the next key only, in every Python program
        chat.process.send_signal(signal.SIGINT)
        assert chat.process.wait(20) == ExitCode.OK
        assert b"Traceback" not in chat.seen
    finally:
        chat.close()
