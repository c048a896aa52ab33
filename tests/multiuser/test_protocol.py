"""Packets between gate and system daemon: what is accepted, and that nothing else is."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.gate import protocol
from stoker.gate.protocol import ProtocolError

Pair = tuple[socket.socket, socket.socket]

REQUESTS = [
    protocol.StartExecutor(1000),
    protocol.KillExecutor(1000, 4711),
    protocol.Release(1000, 2**62),
    protocol.CreateDeviceGroup(1000, "12.1", [[195, 0], [195, 255]]),
    protocol.RemoveDeviceGroup(1000, "12.1"),
]
NOTICES = [
    protocol.Hello(1, [1000, 1001], "/sys/fs/cgroup/devices/stoker", False),
    protocol.Connection(1000, 17, 3, ""),
    protocol.Executor(1000, 18),
    protocol.Refused(1000, "start_executor", "the account has expired"),
    protocol.Ended(1000, 18, -9),
    protocol.DeviceGroup(1000, "12.1", "/sys/fs/cgroup/devices/stoker/user-1000/12.1", ""),
]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        yield left, right


@pytest.mark.parametrize("request_", REQUESTS, ids=repr)
def test_a_request_arrives_as_it_was_sent(pair: Pair, request_: protocol.Request) -> None:
    protocol.send(pair[0], request_)
    assert protocol.receive_request(pair[1]) == request_


@pytest.mark.parametrize("notice", NOTICES, ids=repr)
def test_a_notice_arrives_as_it_was_sent_with_its_descriptor(
    pair: Pair, notice: protocol.Notice, tmp_path: Path
) -> None:
    carries = isinstance(notice, protocol.Connection | protocol.Executor)
    with (tmp_path / "file").open("w") as file:
        protocol.send(pair[0], notice, file.fileno() if carries else None)
        received, fd = protocol.receive_notice(pair[1])
        assert received == notice
        assert (fd is not None) == carries
        if fd is not None:
            assert os.fstat(fd).st_ino == os.fstat(file.fileno()).st_ino
            assert not os.get_inheritable(fd)
            os.close(fd)


@pytest.mark.parametrize(
    "packet",
    [
        b"{}", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 4096, b'{"start_executor":' * 200,
        b'{"start_executor":{}}', b'{"start_executor":{"uid":1000,"gid":0}}',
        b'{"start_executor":{"uid":true}}', b'{"start_executor":{"uid":"1000"}}',
        b'{"start_executor":{"uid":-1}}', b'{"start_executor":{"uid":4294967295}}',
        b'{"start_executor":{"uid":4294967296}}', b'{"start_executor":{"uid":1e3}}',
        b'{"start_executor":{"uid":NaN}}', b'{"start_executor":{"uid":1000,"uid":0}}',
        b'{"start_executor":{"uid":1000},"start_executor":{"uid":0}}',
        b'{"start_executor":{"uid":1000},"release":{"uid":0,"number":1}}',
        b'{"hello":{"version":1,"uids":[],"more":false}}',
        b'{"connection":{"uid":0,"pid":1,"number":1,"why":""}}',
        b'{"kill_executor":{"uid":1000,"pid":1.5}}', b'{"kill_executor":{"uid":1000,"pid":-1}}',
        b'{"create_device_group":{"uid":1000,"name":"../x","devices":[]}}',
        b'{"create_device_group":{"uid":1000,"name":"..","devices":[]}}',
        b'{"create_device_group":{"uid":1000,"name":"a/b","devices":[]}}',
        b'{"create_device_group":{"uid":1000,"name":"a","devices":[[195]]}}',
        b'{"create_device_group":{"uid":1000,"name":"a\\n","devices":[]}}',
        b'{"create_device_group":{"uid":1000,"name":"a","devices":["a *:* rwm"]}}',
        b" " * 4097,
    ],
)  # fmt: skip
def test_the_gate_accepts_no_other_packet(packet: bytes) -> None:
    with pytest.raises(ProtocolError):
        protocol.decode_request(packet)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
FIELDS = st.dictionaries(
    st.sampled_from(["uid", "pid", "number", "name", "devices"]), JSON | st.integers(0, 2**32)
)
SHAPED = st.dictionaries(st.sampled_from(sorted(protocol.REQUESTS)), FIELDS | JSON, max_size=2)


@given(st.binary(max_size=5000) | (SHAPED | JSON).map(lambda v: json.dumps(v).encode()))
def test_any_packet_is_a_request_that_encodes_to_itself_or_an_error(packet: bytes) -> None:
    try:
        request = protocol.decode_request(packet)
    except ProtocolError:
        return
    assert json.loads(protocol.encode(request)) == json.loads(packet)
    assert protocol.is_uid(request.uid)


def test_a_packet_that_is_too_long_is_an_error_not_a_shorter_packet(pair: Pair) -> None:
    valid = protocol.encode(protocol.StartExecutor(1000))
    pair[0].send(valid + b" " * protocol.MAX_PACKET_BYTES)
    with pytest.raises(ProtocolError, match="4096"):
        protocol.receive_request(pair[1])


def test_a_request_with_descriptors_is_an_error_and_leaves_none_open(pair: Pair) -> None:
    before = os.listdir("/proc/self/fd")
    packet = protocol.encode(protocol.StartExecutor(1000))
    socket.send_fds(pair[0], [packet], [0, 0])
    with pytest.raises(ProtocolError, match="descriptor"):
        protocol.receive_request(pair[1])
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("notice", "descriptors"),
    [
        (protocol.Connection(1000, 17, 3, ""), 0),
        (protocol.Connection(1000, 17, 3, ""), 2),
        (protocol.Ended(1000, 17, 0), 1),
    ],
)
def test_a_notice_with_the_wrong_number_of_descriptors_is_an_error_and_leaves_none_open(
    pair: Pair, notice: protocol.Notice, descriptors: int
) -> None:
    before = os.listdir("/proc/self/fd")
    socket.send_fds(pair[0], [protocol.encode(notice)], [0] * descriptors)
    with pytest.raises(ProtocolError, match="descriptor"):
        protocol.receive_notice(pair[1])
    assert os.listdir("/proc/self/fd") == before


def test_the_end_of_the_connection_is_reported(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(protocol.PeerClosed):
        protocol.receive_request(pair[1])
    with pytest.raises(protocol.PeerClosed):
        protocol.receive_notice(pair[1])


def test_texts_are_made_printable_and_short() -> None:
    why = protocol.text("line\nline\x1b[31m" + "\U0001f600" * 9999)
    protocol.decode_notice(protocol.encode(protocol.Refused(1000, "start_executor", why)))


def test_credentials_are_those_of_the_process_at_the_other_end(pair: Pair) -> None:
    assert protocol.credentials(pair[0]) == (os.getpid(), os.getuid())
