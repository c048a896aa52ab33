"""A program ssh that pretends to have reached a node, and attacks the daemon.

Its first argument is the directory of the test, where `attack` names what it does.
"""

import io
import os
import re
import shlex
import sys
import tarfile
import time
from pathlib import Path

HOME = """boot 11
home /home/me
cores 8
tool bash
tool tar
MemTotal: 32768000 kB
MemAvailable: 16384000 kB
cpu 1 2 3 800 50 1 2 3 90 9
load 0.00
end"""
SECONDS = 20.0


def write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def for_ever(data: bytes, *fds: int) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for fd in fds:
            write(fd, data)


def archive() -> bytes:
    """Return a tar with members that must not be extracted."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, kind, target in (
            ("fine", tarfile.REGTYPE, ""), ("out", tarfile.SYMTYPE, "/tmp"),
            ("out/through", tarfile.REGTYPE, ""), ("null", tarfile.CHRTYPE, ""),
            ("../../../escaped", tarfile.REGTYPE, ""),
        ):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, target, 0
            tar.addfile(info)
    return data.getvalue()


class Node:
    """An agent that answers correctly, except for one attack."""

    def __init__(self, attack: str, nonce: str) -> None:
        self.attack, self.nonce = attack, nonce

    def say(self, *words: str) -> None:
        write(1, f"{self.nonce} {' '.join(words)}\n".encode())

    def announce(self, *words: object) -> None:
        write(2, f"{self.nonce} {' '.join(map(str, words))}\n".encode())

    def bulk(self, number: str, data: bytes = b"") -> None:
        if data:
            self.announce(number, len(data))
            write(2, data)
        self.announce(number, 0)

    def serve(self) -> None:
        self.say("-", "hello", "11")
        for line in sys.stdin.buffer:
            number, verb, *words = shlex.split(os.fsdecode(line))
            getattr(self, verb, self.done)(number, *words)

    def done(self, number: str, *_: str) -> None:
        self.say(number, "done")

    def measure(self, number: str) -> None:
        facts = HOME
        if self.attack == "a million GPUs":
            facts = "\n".join(f"gpu {n}, GPU-{n}, A, 1, 0, 0, 0, 0" for n in range(1_000_000))
        for line in facts.split("\n"):
            self.say("-", "reading", line)
        self.say("-", "reading-end")
        if self.attack == "a negative length":
            self.announce("1", "-5")
        elif self.attack == "half an announcement":
            self.announce("1")
        elif self.attack == "a terabyte":
            self.announce("1", 1 << 40)
            for_ever(b"x" * 65536, 2)
        elif self.attack == "a flood of news":
            for_ever(f"{self.nonce} - busy 1.0\n".encode() * 1000, 1)

    def poll(self, number: str, *keys: str) -> None:
        for key in keys:
            self.say(number, "revoked", key)
        self.say(number, "done")

    def start(self, _: str, key: str, *__: str) -> None:
        self.say("-", "started", key, "4242")
        if self.attack == "an escaping archive":
            self.say("-", "exited", key, "0", "1", "0")
        elif self.attack == "a code of a thousand digits":
            self.say("-", "exited", key, "9" * 1000, "0", "0")
        elif self.attack == "escapes":
            write(1, f"{self.nonce} - failed {key} ".encode() + b"\x1b]0;x\x07\xff" * 500 + b"\n")

    def read_new(self, number: str, *_: str) -> None:
        self.bulk(number)

    def collect(self, number: str, _: str, key: str, *__: str) -> None:
        data = archive()
        self.bulk(number, f"{key} tar 0 {len(data)}\n".encode() + data)

    def ping(self, number: str) -> None:
        self.bulk(number)
        self.say(number, "done")


def main(directory: str, *words: str) -> None:
    attack = (Path(directory) / "attack").read_text()
    if "ControlMaster=no" in words:  # a transfer of files
        if attack == "a transfer without end":
            for_ever(b"z" * 65536, 1, 2)
        sys.exit(255)
    text = b""
    while (found := re.search(rb"^NONCE='(\w+)'$", text, re.MULTILINE)) is None:
        text += os.read(0, 1 << 16)
    nonce = found[1].decode()
    if attack == "noise":
        for_ever(os.urandom(65536), 1, 2)
    elif attack == "silence":
        os.close(1)
        time.sleep(SECONDS)
    else:
        # Skip the agent's text up to its last line.
        while not text.rstrip().endswith(b'kill "$PPID" ;; esac'):
            text += os.read(0, 1 << 16)
        Node(attack, nonce).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
