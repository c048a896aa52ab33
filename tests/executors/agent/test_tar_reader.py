"""Tar streams of a node: the output of any tar is read, and no stream can do harm."""

import contextlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.executors.agent.session.remote_shell import CarryError
from stoker.executors.agent.transfer import tar_reader as tars
from stoker.executors.agent.transfer.result_download import unpack
from stoker.executors.agent.transfer.staging import remove_tree
from stoker.executors.agent.transfer.tar_reader import (
    Archive,
    Kind,
    Member,
    Refused,
    TruncatedArchive,
)

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
TYPES = {
    tarfile.REGTYPE: Kind.FILE, tarfile.SYMTYPE: Kind.LINK, tarfile.LNKTYPE: Kind.SECOND_NAME,
    tarfile.DIRTYPE: Kind.DIRECTORY, tarfile.FIFOTYPE: Kind.OTHER,
}  # fmt: skip
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


def tar_of(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=format) as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


def member(
    name: str, content: bytes = b"", type: bytes = tarfile.REGTYPE, target: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mtime, info.mode = type, target, 1234567890, 0o640
    return info, content


def read(data: bytes) -> list[tuple[Member, bytes]]:
    archive = Archive(io.BytesIO(data))
    return [(member, b"".join(archive.content())) for member in archive]


def header(name: bytes = b"a", size: bytes = b"0", type: bytes = b"0", **fields: bytes) -> bytes:
    """Return a header with these raw fields and a valid checksum."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:107] = b"0000644"
    block[124 : 124 + len(size)] = size
    block[136 : 136 + len(fields.get("mtime", b""))] = fields.get("mtime", b"")
    block[156:157] = type
    block[157 : 157 + len(fields.get("target", b""))] = fields.get("target", b"")
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@given(
    st.sampled_from(FORMATS), names.filter(lambda name: name[-1] != "/"), st.sampled_from([*TYPES]),
    names, st.binary(max_size=2000),
)  # fmt: skip
def test_archives_of_tarfile_are_read(
    format: int, name: str, type: bytes, target: str, content: bytes
) -> None:
    if type in (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE):
        target = ""
    if type != tarfile.REGTYPE:
        content = b""
    try:
        data = tar_of(member(name, content, type, target), member("b" * 120, b"x"), format=format)
    except ValueError:
        return  # too long for this format
    first, second = read(data)
    kind = TYPES[type]
    assert first == (Member(name + "/" * (type == tarfile.DIRTYPE), kind, len(content), 0o640,
                            1234567890, target), content)  # fmt: skip
    assert (second[0].name, second[1]) == ("b" * 120, b"x")


@pytest.mark.parametrize("program", ["tar", "busybox"])
def test_archives_of_real_programs_are_read(program: str, tmp_path: Path) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here")
    place = tmp_path / "files"
    (place / "d" / ("x" * 120) / ("y" * 120)).mkdir(parents=True)
    long = f"d/{'x' * 120}/{'y' * 120}/{'z' * 90}"
    (place / long).write_bytes(b"deep")
    (place / "link").symlink_to("n" * 200)
    (place / "one").write_bytes(b"1" * 1000)
    os.link(place / "one", place / "two")
    with (place / "hole").open("wb") as file:
        file.truncate(5000)
    command = [program] if program == "tar" else [program, "tar"]
    done = subprocess.run(
        [*command, "-cf", "-", "./d", "./link", "./one", "./two", "./hole"],
        cwd=place, capture_output=True, check=True,
    )  # fmt: skip
    members = {item.name.removeprefix("./"): (item, content) for item, content in read(done.stdout)}
    assert members[long][1] == b"deep"
    assert (members["link"][0].kind, members["link"][0].target) == (Kind.LINK, "n" * 200)
    assert members["one"][1] == b"1" * 1000
    assert members["two"][0].kind is Kind.SECOND_NAME
    assert members["hole"][1] == bytes(5000)


def test_several_archives_in_a_row_are_read_as_one(tmp_path: Path) -> None:
    data = tar_of(member("a", b"1")) + tar_of(member("b", b"2")) + tar_of()
    assert [(item.name, content) for item, content in read(data)] == [("a", b"1"), ("b", b"2")]


@given(st.integers(1, 20480), st.sampled_from(FORMATS))
def test_a_truncated_archive_is_recognised(length: int, format: int) -> None:
    data = tar_of(member("x" * 90, b"c" * 3000), member("é" * 40, b"d"), format=format)
    whole = read(data)
    part = []
    archive = Archive(io.BytesIO(data[: length % len(data)]))
    with contextlib.suppress(TruncatedArchive):
        part += [(member, b"".join(archive.content())) for member in archive]
    assert part == whole[: len(part)]


RECORDS = [
    b"0 path=x\n", b"5 path=x\n", b"99 path=x\n", b"-9 path=x\n", b"10 pathxx\n", b"path=x\n",
    b"1" * 20000, b"1 " * 20000, b"\xb2 path=x\n", b"10 path=xy", b"12 size=-99\n",
    b"13 size=1e99\n", b"29 size=99999999999999999999\n",
]  # fmt: skip


@pytest.mark.parametrize("records", RECORDS, ids=lambda records: repr(records[:20]))
def test_malformed_records_are_rejected(records: bytes) -> None:
    size = b"%o" % len(records)
    padded = records + bytes(-len(records) % 512)
    data = header(type=b"x", size=size) + padded + header() + bytes(1024)
    if records == b"12 size=-99\n":
        assert read(data)[0][0].size == 0
        return
    with pytest.raises(TruncatedArchive):
        read(data)


@pytest.mark.parametrize(
    "data",
    [
        header(size=b"\x80" + b"\xff" * 11),
        header(size=b"\xff" * 12),
        header(size=b"-7777"),
        header(size=b"89"),
        header(size=b"77777777777"),
        header(mtime=b"\x80" + b"\xff" * 11),
        header(type=b"x", size=b"77777777777"),
        header(type=b"L", size=b"77777777777"),
        header(type=b"L", size=b"\xff" * 12),
        header(type=b"x"),
        header(type=b"L", size=b"1000") + b"n" * 512,
        b"x" * 512,
        header()[:511],
        bytes(2 << 20),
    ],
)
def test_malformed_headers_are_rejected_at_once(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TruncatedArchive):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_chain_of_long_names_is_rejected() -> None:
    one = header(type=b"L", size=b"1000") + b"n" * 512
    with pytest.raises(TruncatedArchive):
        read(one * 200)


def test_sparse_files_are_rejected() -> None:
    with pytest.raises(Refused, match="sparse"):
        read(header(type=b"S"))
    info, content = member("a")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.realsize": "999999999999"}
    with pytest.raises(Refused, match="sparse"):
        read(tar_of((info, content), format=tarfile.PAX_FORMAT))


def test_too_many_members_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tars, "MAX_MEMBERS", 10)
    assert len(read(header() * 10)) == 10
    with pytest.raises(Refused, match="more than 10 files"):
        read(header() * 11)


class Endless:
    """A stream that repeats one block for ever."""

    def __init__(self, block: bytes) -> None:
        self.block, self.taken = block, 0

    def read(self, size: int) -> bytes:
        self.taken += min(size, 512)
        assert self.taken < 200_000_000
        return self.block[:size]


def test_endless_streams_are_rejected() -> None:
    for block in (bytes(512), header(), header(type=b"5"), header(type=b"x", size=b"1000")):
        with pytest.raises(Refused):
            for _ in Archive(Endless(block)):
                pass


# -- extraction ---------------------------------------------------------------------------


def list_parent(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*")}


@pytest.mark.parametrize(
    "name",
    ["../out", "a/../../out", "/out", "./../out", "..", "a/..", "x" * 5000, "a/" * 300 + "b",
     "n" * 256],
    ids=lambda name: name[:12],
)  # fmt: skip
def test_paths_that_lead_outside_or_are_too_long_are_rejected(name: str, tmp_path: Path) -> None:
    into = tmp_path / "into"
    with pytest.raises(CarryError):
        unpack(tar_of(member(name, b"x"), format=tarfile.PAX_FORMAT), str(into))
    assert list_parent(tmp_path) == {"into"}


def test_nothing_is_written_through_links(tmp_path: Path) -> None:
    into, outside = tmp_path / "into", tmp_path / "outside"
    outside.mkdir()
    for target in (str(outside), "../outside", "sub/../../outside"):
        data = tar_of(member("d", type=tarfile.SYMTYPE, target=target), member("d/x", b"x"))
        unpack(data, str(into))
        assert list(outside.iterdir()) == []
        assert (into / "d/x").read_bytes() == b"x"
        shutil.rmtree(into)


def test_a_hard_link_to_a_file_outside_is_rejected(tmp_path: Path) -> None:
    into = tmp_path / "into"
    (tmp_path / "secret").write_text("secret")
    for target in ("../secret", str(tmp_path / "secret"), ".", ""):
        data = tar_of(member("a", type=tarfile.LNKTYPE, target=target))
        with pytest.raises(CarryError):
            unpack(data, str(into))
    assert list_parent(tmp_path) == {"into", "secret"}


def test_devices_and_pipes_are_skipped(tmp_path: Path) -> None:
    kinds = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE)
    unpack(tar_of(*(member(f"m{n}", type=kind) for n, kind in enumerate(kinds))), str(tmp_path))
    assert list_parent(tmp_path) == {"m3"}


def test_times_out_of_bounds_are_accepted(tmp_path: Path) -> None:
    for value in ("nan", "inf", "-1", "99999999999999999", "1e400", "12.5"):
        info, content = member("a", b"x")
        info.pax_headers = {"mtime": value}
        with contextlib.suppress(CarryError):
            unpack(tar_of((info, content), format=tarfile.PAX_FORMAT), str(tmp_path))


@given(st.binary(max_size=1500) | st.lists(st.sampled_from([
    header(), header(b"d/", type=b"5"), header(b"../x", b"3"), header(type=b"x", size=b"12"),
    header(type=b"L", size=b"5"), header(b"l", type=b"2", target=b"../.."), bytes(512),
    b"10 path=..\n".ljust(512, b"\0"), b"name".ljust(512, b"\0"), header(size=b"700"), b"x" * 512,
]), max_size=12).map(b"".join))  # fmt: skip
def test_no_stream_writes_outside(data: bytes) -> None:
    place = Path(os.path.realpath(tempfile.mkdtemp(prefix="stoker-tar-"))) / "place"
    (place / "into").mkdir(parents=True)
    try:
        with contextlib.suppress(CarryError):
            unpack(data, str(place / "into"))
        assert {path.name for path in place.iterdir()} == {"into"}
        for path in (place / "into").rglob("*"):
            assert path.resolve().is_relative_to(place / "into")
    finally:
        shutil.rmtree(place.parent)


def test_a_thousand_nested_directories_are_removed(tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    deep.mkdir()
    here = os.open(deep, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    remove_tree(str(deep))
    assert not deep.exists()
