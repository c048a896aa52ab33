"""Selection of the store, and its description for users."""

import sqlite3
import stat
from pathlib import Path

import pytest

from stoker import places
from stoker.core.model.units import BadValue
from stoker.store.select import (
    StoreConfig,
    mask_password,
    moved_warning,
    parse,
    select_store,
)


@pytest.mark.parametrize(
    ("text", "url", "schema"),
    [
        ("sqlite", None, "stoker"),
        ("postgres", "", "stoker"),
        ("postgresql://ada@db/lab", "postgresql://ada@db/lab", "stoker"),
        ("postgres://db", "postgres://db", "stoker"),
        ("postgresql://db/lab?schema=gpu_box", "postgresql://db/lab", "gpu_box"),
        ("postgresql:///?a=1&schema=x&b=2", "postgresql:///?a=1&b=2", "x"),
        ("postgresql://ada:p%40w@db/lab", "postgresql://ada:p%40w@db/lab", "stoker"),
    ],
)
def test_valid_urls_are_parsed(text: str, url: str | None, schema: str):
    found = parse(text, "--db")
    assert (found.url, found.schema) == (url, schema)
    assert parse(found.text, "--db") == found


@pytest.mark.parametrize(
    "text",
    [
        "", "mysql://ada:s3cret@db", "/var/lib/s3cret.db", "host=db password=s3cret",
        "postgresql://ada:s3c@ret@db/lab", "postgresql://ada:s3c?ret@db/lab",
        "postgresql://db/lab?schema=", "postgresql://db/lab?schema=Big",
        "postgresql://db/lab?schema=a;b", "postgresql://db/lab?schema=pg_catalog",
        f"postgresql://db/lab?schema={'x' * 64}",
    ],
)  # fmt: skip
def test_invalid_urls_are_rejected_without_showing_a_password(text: str):
    with pytest.raises(BadValue) as refused:
        parse(text, "--db")
    assert "--db" in str(refused.value)
    assert "ret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://db/lab", "postgresql://db/lab"),
        ("postgresql://ada@db/lab", "postgresql://ada@db/lab"),
        ("postgresql://ada:pw@db/lab", "postgresql://ada:***@db/lab"),
        ("postgresql://ada:p@w:?x@db:5/lab?a=b", "postgresql://ada:***@db:5/lab?a=b"),
        ("postgresql://db/lab?password=pw&a=b", "postgresql://db/lab?password=***&a=b"),
        ("postgresql://db/lab?sslpassword=pw", "postgresql://db/lab?sslpassword=***"),
    ],
)
def test_a_password_is_masked_anywhere_in_a_url(url: str, shown: str):
    assert mask_password(url) == shown
    assert StoreConfig(url).shown == f"{shown} (schema stoker)"


A, B, C, D = (f"postgresql://{name}/lab" for name in "abcd")


@pytest.mark.parametrize(
    ("said", "variable", "configured", "remembered", "url"),
    [
        (None, None, None, None, None),
        (None, None, None, D, D),
        (None, None, C, D, C),
        (None, B, C, D, B),
        (A, B, C, D, A),
        ("sqlite", B, C, D, None),
        ("postgres", B, C, D, B),
        ("postgres", None, C, D, C),
        ("postgres", "sqlite", C, None, C),
        ("postgres", None, None, None, ""),
        (None, "postgres", C, None, C),
        (None, "", None, None, None),
    ],
)
def test_flag_precedes_variable_precedes_file_precedes_the_remembered_choice(
    said: str | None,
    variable: str | None,
    configured: str | None,
    remembered: str | None,
    url: str | None,
):
    environ = {} if variable is None else {"STOKER_DB": variable}
    assert select_store(said, configured, remembered, environ).url == url


def test_the_remembered_choice_is_readable_only_by_its_owner(tmp_path: Path):
    path = tmp_path / "store.json"
    assert places.read_options(str(path)) == {}
    options = {"db": "postgresql://ada:pw@db", "last": "sqlite"}
    places.write_options(str(path), **options)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert places.read_options(str(path)) == options


@pytest.mark.parametrize("text", ["", "[]", "nonsense"])
def test_a_damaged_stored_choice_is_ignored(tmp_path: Path, text: str):
    (tmp_path / "store.json").write_text(text)
    assert places.read_options(str(tmp_path / "store.json")) == {}


def test_jobs_left_in_another_store_are_counted(tmp_path: Path):
    journal, server = tmp_path / "journal.db", parse(A, "--db")
    assert moved_warning(server, None, str(journal)) is None
    with sqlite3.connect(journal) as db:
        db.execute("CREATE TABLE jobs (id)")
        assert moved_warning(server, None, str(journal)) is None
        db.execute("INSERT INTO jobs VALUES (1), (2)")
    db.close()
    before = journal.read_bytes()
    for last in (None, "sqlite"):
        assert "2 earlier jobs remain in" in str(moved_warning(server, last, str(journal)))
    assert moved_warning(server, server.shown, str(journal)) is None
    assert moved_warning(StoreConfig(), None, str(journal)) is None
    assert "earlier jobs remain in" in str(moved_warning(StoreConfig(), server.shown, str(journal)))
    assert journal.read_bytes() == before
