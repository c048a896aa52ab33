"""Limits, reservations, shares and tokens of real users of one system daemon."""

import json
import ssl
from hashlib import sha256
from http.client import HTTPSConnection
from typing import Any

import pytest

from multiuser.conftest import Machine
from multiuser.system_daemon import Rejected, SystemDaemon


def rejected(client: Any, method: str, path: str, body: object = None) -> Rejected:
    """Return the rejection of a request."""
    with pytest.raises(Rejected) as error:
        client.ask(method, path, body)
    return error.value


def test_limits_hold_per_user_and_are_set_by_administrators_only(
    machine: Machine, system: SystemDaemon
) -> None:
    ana, ben, root = (system.client(user) for user in (machine.ana, machine.ben, None))
    body = {"subject": machine.ana.name, "max_running": "1", "max_pending": "1"}
    assert rejected(ana, "POST", "/limits", body).status == 403
    assert root.ask("POST", "/limits", body)["limits"]["id"] == machine.ana.uid
    runs, waits = (ana.submit("sleep 600") for _ in range(2))
    other = ben.submit("true")
    assert [view["state"] for view in ben.wait(other)] == ["COMPLETED"]
    why = ana.ask("GET", f"/jobs/{waits}/why")
    assert why["reason"] == "AssocGrpJobsLimit"
    assert f"user {machine.ana.name} may run 1" in json.dumps(why)
    with pytest.raises(Rejected) as error:
        ana.submit("true")
    assert error.value.status == 429
    assert [view["subject"] for view in ana.ask("GET", "/limits")["limits"]] == [machine.ana.name]
    assert ben.ask("GET", "/limits")["limits"] == []
    ana.ask("POST", "/cancel", {"select": [str(runs), str(waits)]})


def test_reservations_and_shares_are_for_administrators(
    machine: Machine, system: SystemDaemon
) -> None:
    ana, root = system.client(machine.ana), system.client(None)
    nodes = [node["name"] for node in ana.ask("GET", "/nodes")["nodes"]]
    body = {"nodes": nodes, "duration": "1h", "subjects": [machine.ben.name]}
    assert rejected(ana, "POST", "/reservations", body).status == 403
    root.ask("POST", "/reservations", body)
    waits = ana.submit("true")
    assert ana.ask("GET", f"/jobs/{waits}/why")["reason"] == "Reservation"
    ben = system.client(machine.ben)
    assert ben.run("id -u")["state"] == "COMPLETED"
    assert rejected(ana, "DELETE", "/reservations/r1").status == 403
    root.ask("DELETE", "/reservations/r1")
    assert ana.wait(waits)[0]["state"] == "COMPLETED"
    share = {"subject": machine.ana.name, "weight": 2.0}
    assert rejected(ana, "POST", "/shares", share).status == 403
    assert root.ask("POST", "/shares", share)["changed"]


def test_a_token_acts_as_its_user_over_tls_until_it_is_revoked(
    machine: Machine, system: SystemDaemon
) -> None:
    ana, ben, root = (system.client(user) for user in (machine.ana, machine.ben, None))
    port = root.ask("POST", "/listen", {"address": "127.0.0.1:0", "tls": True})
    texts = {
        rights: ana.ask("POST", "/tokens", {"name": rights, "rights": rights, "days": 1})["token"]
        for rights in ("view", "act")
    }

    def send(token: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        host, _, number = port["address"].rpartition(":")
        connection = HTTPSConnection(host, int(number), context=context, timeout=60)
        connection.connect()
        certificate = connection.sock.getpeercert(True) or b""
        assert port["fingerprint"] == "sha256:" + sha256(certificate).hexdigest()
        headers = {"Host": "stoker", "Authorization": f"Bearer {token}", "Connection": "close"}
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, f"/v1{path}", data, headers)
        reply = connection.getresponse()
        status, text = reply.status, reply.read()
        connection.close()
        return status, json.loads(text)

    submission = {
        "what": {"line": "id -u"}, "directory": str(machine.ana.home),
        "environment": machine.ana.environment(),
    }  # fmt: skip
    assert send("stk_wrong", "GET", "/jobs")[0] == 401
    assert send(texts["view"], "POST", "/jobs", submission)[0] == 403
    status, receipt = send(texts["act"], "POST", "/jobs", submission)
    assert status == 200, receipt
    ana.wait(receipt["first"])
    assert ana.log(receipt["first"]) == f"{machine.ana.uid}\n"
    assert send(texts["view"], "GET", f"/jobs?select={receipt['first']}")[0] == 200
    for method, path, body in (
        ("POST", "/tokens", {"name": "more"}), ("GET", "/tokens", None),
        ("POST", "/limits", {"subject": "*", "max_gpus": "1"}),
        ("POST", "/daemon/stop", {}), ("POST", "/listen", {"address": "127.0.0.1:0"}),
    ):  # fmt: skip
        assert send(texts["act"], method, path, body)[0] == 403
    assert ben.ask("GET", "/tokens")["tokens"] == []
    assert rejected(ben, "DELETE", "/tokens/act").status == 404
    ana.ask("DELETE", "/tokens/act")
    assert send(texts["act"], "GET", "/jobs")[0] == 401
    names = [token["name"] for token in root.ask("GET", "/tokens")["tokens"]]
    assert names == ["view"]
