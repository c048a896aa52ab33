"""The report of a sweep: whole in one file, and safe whatever the parameters are called."""

import json
import math
from html.parser import HTMLParser
from typing import Any

import pytest

from stoker.sweep.results.page import html, page_data

EVIL = "</script><img src=x onerror=alert(1)>&\u2028"


class Page(HTMLParser):
    """The elements of a page, and what its scripts and styles hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.inside: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, text: str) -> None:
        if self.tags:
            name = f"{self.tags[-1]}{self.tags.count(self.tags[-1])}"
            self.inside[name] = self.inside.get(name, "") + text

    @property
    def data(self) -> Any:
        return json.loads(self.inside["script1"])


def made(count: int = 12, metric: str | None = "loss", **more: Any) -> dict[str, Any]:
    trials = [
        {
            "label": f"17_{number}", "number": number, "state": "COMPLETED", "stopped": False,
            "params": {"lr": 10.0 ** -(number % 5), "bs": 16 << number % 3, "opt": "adam",
                       "fixed": 1, **more},
            "value": number / 10 if metric else None, "step": 9.0, "elapsed": 60.0, "cause": "done",
        }
        for number in range(count)
    ]  # fmt: skip
    sweep = {
        "id": 17, "label": "17", "name": "train", "user": "ana", "state": "DONE", "method": "tpe",
        "metric": metric, "goal": "minimize", "counts": {"done": count}, "total": count,
        "best": {"label": "17_0", "value": 0.0, "params": {}} if metric and count else None,
    }  # fmt: skip
    definition = {
        "command": ["python", "train.py"],
        "parameters": {
            "lr": {"distribution": "log_uniform", "min": 1e-5, "max": 1},
            "bs": {"values": [16, 32, 64]},
            "opt": {"values": ["adam", "sgd"]},
            "fixed": {"value": 1},
        },
    }
    return {"sweep": sweep, "definition": definition, "trials": trials}


def test_all_is_in_one_file() -> None:
    page = Page(html(made(), {"17_0": [[1, 0.5], [2, 0.4]]}))
    links = {"src", "href", "data", "srcset", "poster", "action"}
    assert not [name for name, _ in page.attributes if name in links]
    assert "link" not in page.tags
    assert "default-src 'none'" in (dict(page.attributes)["content"] or "")
    script, style = page.inside["script2"], page.inside["style1"]
    assert "fetch(" not in script
    assert "url(" not in style
    assert "@import" not in style
    assert script.replace("http://www.w3.org/", "").count("http") == 0
    assert page.data["series"] == {"17_0": [[1, 0.5], [2, 0.4]]}
    assert len(page.data["trials"]) == 12


def test_texts_cannot_leave_their_place() -> None:
    view = made(**{EVIL: EVIL})
    view["sweep"]["name"] = view["sweep"]["metric"] = EVIL
    view["trials"][0]["cause"] = EVIL
    page = Page(html(view, {}))
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert page.data["sweep"]["name"] == EVIL
    assert page.data["trials"][0]["params"][EVIL] == EVIL


def test_parameters_that_do_not_vary_stand_apart() -> None:
    found = page_data(made(), {})
    assert found["fixed"] == {"fixed": 1, "opt": "adam"}
    assert found["parameters"]["lr"]["distribution"] == "log_uniform"


@pytest.mark.parametrize("count", [0, 1, 2, 200])
@pytest.mark.parametrize("metric", ["loss", None])
def test_any_number_of_trials(count: int, metric: str | None) -> None:
    page = Page(html(made(count, metric), {}))
    assert len(page.data["trials"]) == count
    assert bool(page.data["importance"]) == (count == 200 and metric is not None)


def test_figures_that_are_no_numbers_are_left_out() -> None:
    view = made()
    view["trials"][3]["value"] = math.nan
    page = Page(html(view, {"17_3": [[1, math.inf], [2, 0.5]]}))
    assert page.data["trials"][3]["value"] is None
    assert page.data["series"]["17_3"] == [[1, None], [2, 0.5]]


def test_braces_in_texts_are_no_fields() -> None:
    view = made(opt2="{0} {title}")
    assert Page(html(view, {})).data["trials"][0]["params"]["opt2"] == "{0} {title}"


def test_what_failed_on_its_way_is_not_compared() -> None:
    view = made()
    for trial in view["trials"][:2]:
        trial["state"] = "FAILED"
    found = page_data(view, {})
    assert [trial["counts"] for trial in found["trials"]] == [False, False, *[True] * 10]


def test_the_command_is_shown_as_people_write_it() -> None:
    view = made()
    view["definition"]["command"] = ["python", "t.py", "lr=${param:lr}", "${no_args}"]
    assert page_data(view, {})["command"] == "python t.py lr={lr}"
