"""`stoker ui` and the page over a real port."""

import gzip
import http.client
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from e2e.daemon_fixture import DaemonFixture
from stoker.daemon.routes import page_files

pytestmark = pytest.mark.e2e


@pytest.fixture
def box(home: Path, stoker: Any) -> DaemonFixture:
    return DaemonFixture(home, stoker).start()


class Browser:
    """Requests to the page's port, with the cookie that it was given."""

    def __init__(self, link: str) -> None:
        address, _, self.code = link.strip().partition("/#c=")
        self.address = address.removeprefix("http://")
        self.cookie = ""

    def request(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            fields["Cookie"] = self.cookie
        with closing(http.client.HTTPConnection(self.address, timeout=30)) as connection:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, fields)
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def open(self) -> int:
        status, headers, _ = self.request("POST", "/v1/sessions/open", {"code": self.code})
        self.cookie = (headers["Set-Cookie"] or "").partition(";")[0]
        if status == 200:
            flags = headers["Set-Cookie"].lower()
            assert "httponly" in flags
            assert "samesite=strict" in flags
            assert "path=/" in flags
            assert self.cookie.startswith(f"stoker-{self.address.rpartition(':')[2]}=")
        return status

    def act(self, path: str, body: Any) -> int:
        own = {"Stoker_Session": "1", "Sec_Fetch_Site": "same-origin"}
        return self.request("POST", path, body, **own)[0]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A built page; the daemon of this process serves it."""
    directory = tmp_path / "dist"
    directory.mkdir()
    monkeypatch.setattr(page_files, "DIRECTORY", str(directory))
    return directory


def link(box: DaemonFixture, *options: str) -> Browser:
    done = box.stoker("ui", "--print", *options)
    assert done.returncode == 0, done.stderr
    return Browser(done.stdout)


def test_a_link_opens_one_session_that_survives_a_restart(box: DaemonFixture) -> None:
    browser = link(box)
    assert browser.request("GET", "/v1/jobs")[0] == 401
    assert browser.open() == 200
    assert Browser(f"http://{browser.address}/#c={browser.code}").open() == 403
    assert browser.request("GET", "/v1/jobs")[0] == 200
    job = box.submit("--hold", "true")
    assert browser.request("POST", "/v1/cancel", {"select": [job]})[0] == 403
    assert browser.act("/v1/cancel", {"select": [job]}) == 200
    assert browser.act("/v1/daemon/stop", {}) == 403
    assert link(box).address == browser.address
    box.crash()
    box.up()
    assert browser.request("GET", "/v1/jobs")[0] == 200


def test_a_shared_link_is_to_look_only_until_it_is_revoked(box: DaemonFixture) -> None:
    done = box.stoker("ui", "--share", "8h", "--no-logs", "--json")
    shared = json.loads(done.stdout)
    viewers = [Browser(shared["url"]) for _ in range(2)]
    box.submit("echo", "secret")
    box.end_of(1)
    for viewer in viewers:
        assert viewer.open() == 200
        assert viewer.request("GET", "/v1/jobs/columns")[0] == 200
        assert viewer.request("GET", "/v1/jobs/1/log")[0] == 403
        assert viewer.act("/v1/cancel", {"select": ["1"]}) == 403
    listed = box.stoker("ui", "--sessions").stdout.splitlines()
    assert len(listed) == 4, listed
    assert box.stoker("ui", "--revoke", shared["id"]).returncode == 0
    assert [viewer.request("GET", "/v1/jobs")[0] for viewer in viewers] == [401, 401]
    assert box.stoker("ui", "--revoke", "nothing").returncode == 3


def test_a_stream_ends_with_its_session(box: DaemonFixture) -> None:
    browser = link(box, "--read-only")
    browser.open()
    with closing(http.client.HTTPConnection(browser.address, timeout=30)) as connection:
        connection.request("GET", "/v1/live?topics=gpus,jobs", headers={"Cookie": browser.cookie})
        with closing(connection.getresponse()) as response:
            lines = (line.decode().strip() for line in response)
            hello = json.loads(next(line for line in lines if line.startswith("data: "))[6:])
            assert (hello["rights"], hello["read_only"]) == (["view"], True)
            id = box.client.sessions()["sessions"][0]["id"]
            box.client.end_session(id)
            assert list(lines) is not None  # the stream ends


def files(directory: Path) -> Callable[..., Any]:
    """Return a function that requests a file of the page in this process."""
    import asyncio

    from starlette.requests import Request

    def get(name: str, **headers: str) -> Any:
        scope = {
            "type": "http", "method": "GET", "path": f"/ui/{name}", "path_params": {"name": name},
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
        }  # fmt: skip
        return asyncio.run(page_files.page_file(Request(scope)))

    return get


def test_files_have_strict_headers_and_are_cached_by_name(page: Path) -> None:
    (page / "index.html").write_text("<!doctype html>")
    (page / "app-0123abcd.js").write_text("1;" * 1000)
    get = files(page)
    index = get("index.html")
    assert "default-src 'none'" in index.headers["content-security-policy"]
    assert (index.headers["cache-control"], index.headers["x-content-type-options"]) == (
        "no-cache", "nosniff"
    )  # fmt: skip
    assert get("index.html", if_none_match=index.headers["etag"]).status_code == 304
    script = get("app-0123abcd.js", accept_encoding="gzip, br")
    assert script.headers["content-encoding"] == "gzip"
    assert len(script.body) < 100
    assert gzip.decompress(script.body) == b"1;" * 1000
    assert "immutable" in script.headers["cache-control"]
    assert get("app-0123abcd.js").body == b"1;" * 1000


@pytest.mark.parametrize("name", ["../secret.js", "missing.js", ".hidden.js", "a/b.js", "x.py", ""])
def test_nothing_but_files_of_the_page_is_served(page: Path, name: str) -> None:
    (page.parent / "secret.js").write_text("secret")
    (page / ".hidden.js").write_text("secret")
    (page / "x.py").write_text("secret")
    with pytest.raises(Exception, match="There is no file"):
        files(page)(name)
