"""The report of a simulation: its figures by hand, and a page that is whole, safe and small."""

import json
import random
from html.parser import HTMLParser
from itertools import pairwise
from statistics import quantiles
from typing import Any

import pytest

from stoker.simulate.replay.results import JobResult, RunCost, RunResult, Segment
from stoker.simulate.report.gantt import MAX_LANES, MAX_SEGMENTS, MAX_SEGMENTS_PER_RUN, gantt_data
from stoker.simulate.report.page import html, page_data
from stoker.simulate.report.statistics import (
    MEASURES,
    best,
    quantile,
    ratios,
    run_labels,
    run_statistics,
    share_in_use,
    size_group,
    statistics_of_runs,
)
from stoker.simulate.report.table import as_json, lines, size_lines

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&\u2028{0} {title}"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """The elements of a page, and what its scripts and styles hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.inside: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.tags:
            name = f"{self.tags[-1]}{self.tags.count(self.tags[-1])}"
            self.inside[name] = self.inside.get(name, "") + text

    @property
    def data(self) -> Any:
        return json.loads(self.inside["script1"])


def job(
    number: int, at: float, waits: float, runs: float, gpus: float = 1.0, **more: Any
) -> JobResult:
    begin = at + waits
    return JobResult(
        job=number,
        submit_time=at,
        gpus=gpus,
        start_time=begin,
        end_time=begin + runs,
        run_time=runs,
        gpu_seconds=runs * gpus,
        **more,
    )


def run(results: list[JobResult], policy: str = "fifo", **more: Any) -> RunResult:
    settings: dict[str, Any] = {"gpus": 4, "cost": RunCost(), "node_names": ["a"], **more}
    return RunResult(policy=policy, workload="small", results=results, **settings)


def small(policy: str = "fifo", waits: float = 100.0, **more: Any) -> RunResult:
    """Three jobs: 1 GPU at 0 for 100 s, 2 GPUs at 50, 8 GPUs at 100 that waits."""
    results = [
        job(0, 0, 0, 100, 1, user="ana", queue="day"),
        job(1, 50, 0, 200, 2, user="bo", queue="day", preemptions=2),
        job(2, 100, waits, 300, 8, user="ana", queue="night", preemptions=1),
    ]
    in_use = [(0.0, 1.0), (50.0, 3.0), (100.0, 2.0), (250.0, 0.0)]
    settings: dict[str, Any] = {
        "gpus_in_use": in_use,
        "pending_jobs": [(0.0, 0), (100.0, 1)],
        **more,
    }
    return run(results, policy, **settings)


# ---------------------------------------------------------------------------- figures


def test_times_of_three_jobs() -> None:
    found = run_statistics(small())
    assert found.jobs == 3
    assert found.jct is not None
    assert found.waiting is not None
    assert found.slowdown is not None
    assert found.jct.mean == pytest.approx((100 + 200 + 400) / 3)
    assert found.jct.median == 200
    assert found.jct.p90 == pytest.approx(200 + 0.8 * 200)
    assert found.jct.p99 == pytest.approx(200 + 0.98 * 200)
    assert found.jct.most == 400
    assert found.waiting.mean == pytest.approx(100 / 3)
    assert found.waiting.most == 100
    assert found.slowdown.mean == pytest.approx((1 + 1 + 400 / 300) / 3)
    assert found.makespan == 500
    assert found.preemptions == 1.0


def test_waiting_counts_what_came_after_a_preemption() -> None:
    """Submitted at 0, ran 10–20 and 50–60: it held nothing for 40 of 60 s."""
    result = JobResult(
        job=0,
        submit_time=0,
        gpus=1,
        start_time=10,
        end_time=60,
        run_time=20,
        gpu_seconds=20,
        preemptions=1,
    )
    found = run_statistics(run([result]))
    assert found.waiting is not None
    assert found.waiting.mean == 40


def test_use_is_weighted_by_time() -> None:
    found = run_statistics(small())
    # Until 100, the last submission: 50 s with 1 GPU and 50 s with 3, of 4.
    assert found.busy == pytest.approx((50 * 1 + 50 * 3) / 100 / 4)
    # Until 500: and 150 s with 2.
    assert found.busy_whole == pytest.approx((50 * 1 + 50 * 3 + 150 * 2) / 500 / 4)


def test_use_begins_with_the_first_submission() -> None:
    late = run([job(0, 1000, 0, 100)], gpus_in_use=[(1000.0, 4.0), (1050.0, 0.0)])
    assert run_statistics(late).busy_whole == pytest.approx(0.5)
    assert share_in_use(late, 900, 1100) == pytest.approx(50 / 200)
    # All was submitted at once: there is no time before the last submission.
    assert run_statistics(late).busy is None


def test_quantiles_are_those_of_the_statistics_module() -> None:
    chance = random.Random(4)
    for count in (2, 3, 7, 100, 101):
        values = sorted(chance.expovariate(1) for _ in range(count))
        cuts = quantiles(values, n=100, method="inclusive")
        for place, cut in enumerate(cuts, start=1):
            assert quantile(values, place / 100) == pytest.approx(cut)
    assert quantile([7.0], 0.99) == 7.0


@pytest.mark.parametrize(("gpus", "size"), [
    (0, "none"), (0.25, "<1"), (0.999, "<1"), (1, "1"), (2, "2–4"), (4, "2–4"), (5, "5–8"),
    (8, "5–8"), (9, ">8"), (512, ">8"),
])  # fmt: skip
def test_sizes(gpus: float, size: str) -> None:
    assert size_group(gpus) == size


def test_groups_by_size_user_and_queue() -> None:
    found = run_statistics(small())
    assert [(each.name, each.jobs) for each in found.by_size] == [("1", 1), ("2–4", 1), ("5–8", 1)]
    assert found.by_size[2].waiting.median == 100
    # ana held 100 + 2400 GPU-seconds, bo 400: the largest comes first.
    assert [(each.name, each.service) for each in found.by_user] == [("ana", 2500), ("bo", 400)]
    assert found.by_user[0].jct.mean == 250
    assert [(each.name, each.jobs) for each in found.by_queue] == [("night", 1), ("day", 2)]


def test_a_job_that_fails_at_once_does_not_outweigh_the_others() -> None:
    """It ran for 1 s after 99 s of waiting: 100 s by 10 s, not by 1 s."""
    found = run_statistics(run([job(0, 0, 99, 1)]))
    assert found.slowdown is not None
    assert found.slowdown.mean == 10.0


def test_ratios_compare_with_the_base() -> None:
    base, other = run_statistics(small(waits=100)), run_statistics(small("sjf", waits=400))
    found = ratios(other, base)
    assert found["jct_mean"] == pytest.approx(1000 / 700)
    assert found["wait_mean"] == pytest.approx(4.0)
    assert found["preemptions"] == 1.0
    assert set(ratios(base, base).values()) == {1.0}
    nobody_waits = run_statistics(small(waits=0))
    assert ratios(base, nobody_waits)["wait_mean"] is None
    assert ratios(nobody_waits, nobody_waits)["wait_mean"] == 1.0


def test_the_best_of_a_measure() -> None:
    figures = [run_statistics(small(waits=waits)) for waits in (100, 0, 400)]
    known = {measure.key: best(figures, measure) for measure in MEASURES}
    assert known["jct_mean"] == 200
    assert known["preemptions"] is None, "all are the same"
    assert known["deciding"] is None, "a matter of the machine, not of the policy"


def test_a_run_in_which_nothing_ended() -> None:
    found = run_statistics(run([], unfinished=3))
    assert (found.jobs, found.unfinished, found.jct, found.makespan) == (0, 3, None, None)
    assert found.by_size == []
    assert all(measure.of(found) is None for measure in MEASURES)


def test_runs_of_one_policy_are_named_by_what_differs() -> None:
    runs = [
        small("fifo"),
        small("planner", parameters={"restart": 60.0, "hold": 1.0}),
        small("planner", parameters={"restart": 60.0, "hold": 2.0}),
        small("planner", parameters={"restart": 60.0, "hold": 2.0}),
    ]
    assert run_labels(runs) == ["fifo", "planner hold=1", "planner hold=2", "planner hold=2 #2"]


# ------------------------------------------------------------------ table and JSON


def test_the_table() -> None:
    text = lines(statistics_of_runs([small(), small("sjf", waits=400)]))
    assert text[0].split()[:4] == ["policy", "mean", "JCT", "×"]
    assert "3.89 min    1.00" in text[1]
    assert "5.56 min    1.43" in text[2]
    assert len(text) == 3


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
def test_the_table_fits_and_keeps_what_matters(width: int) -> None:
    text = lines(statistics_of_runs([small(), small("sjf", waits=400)]), width)
    assert all(len(line) <= width for line in text)
    assert "mean JCT" in text[0]
    assert ("× fifo" in text[0]) == (width >= 40)


def test_the_table_can_have_another_base() -> None:
    text = lines(statistics_of_runs([small(), small("sjf", waits=400)]), base="sjf")
    assert "× sjf" in text[0]
    assert "0.70" in text[1]
    with pytest.raises(ValueError, match=r"There is no run 'lifo'; runs: fifo, sjf\."):
        lines(statistics_of_runs([small(), small("sjf")]), base="lifo")


def test_the_table_says_what_did_not_end() -> None:
    text = lines(statistics_of_runs([small(unfinished=2)]))
    assert text[-1] == (
        "note: fifo: 2 of 5 jobs did not end; its statistics cover only the others."
    )
    assert as_json([run([], unfinished=3)])["warnings"] == ["fifo: none of 3 jobs ended."]
    assert not any("note" in line for line in lines(statistics_of_runs([small()])))


def test_the_table_of_sizes() -> None:
    text = size_lines(statistics_of_runs([small(), small("sjf", waits=400)]))
    assert text[0].split() == ["mean", "wait", "1", "GPU", "2–4", "GPU", "5–8", "GPU"]
    assert text[1].split()[-2:] == ["1.67", "min"]


def test_json_has_every_figure() -> None:
    found = json.loads(json.dumps(as_json([small(), small("sjf", waits=400)]), allow_nan=False))
    assert found["base"] == "fifo"
    assert [each["policy"] for each in found["runs"]] == ["fifo", "sjf"]
    first, second = found["runs"]
    assert set(first["jct"]) == {"mean", "median", "p90", "p99", "most"}
    assert first["makespan"] == 500
    assert [group["name"] for group in first["by_size"]] == ["1", "2–4", "5–8"]
    assert second["ratios"]["wait_mean"] == pytest.approx(4.0)
    assert "deciding" not in second["ratios"]


def test_json_of_nothing() -> None:
    assert as_json([])["runs"] == []
    empty = as_json([run([])])["runs"][0]
    assert empty["jct"] is None
    assert lines([]) == []


# --------------------------------------------------------------------------- the page


def test_all_is_in_one_file() -> None:
    page = Page(html([small(), small("sjf", waits=400)], "Small lab", ["All of it."]))
    assert page.open == []
    links = {"src", "href", "data", "srcset", "poster", "action"}
    assert not [name for name, _ in page.attributes if name in links]
    assert "link" not in page.tags
    assert "default-src 'none'" in (dict(page.attributes)["content"] or "")
    script, style = page.inside["script2"], page.inside["style1"]
    assert "fetch(" not in script
    assert "url(" not in style
    assert "@import" not in style
    assert page.data["title"] == "Small lab"
    assert page.data["notes"] == ["All of it."]
    assert [each["label"] for each in page.data["runs"]] == ["fifo", "sjf"]


def test_texts_cannot_leave_their_place() -> None:
    results = [job(0, 0, 0, 10, user=EVIL, queue=EVIL), job(1, 0, 0, 10, user="b", queue="c")]
    evil = run(results, EVIL, node_names=[EVIL], parameters={EVIL: 1.0}, notes=[EVIL],
               segments=[Segment(0, 0, 0, 1.0, 0.0, 10.0)])  # fmt: skip
    page = Page(html([evil], EVIL, [EVIL]))
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    data = page.data
    assert data["title"] == data["notes"][0] == data["runs"][0]["label"] == EVIL
    assert EVIL in [row[0] for row in data["users"]["rows"]]
    assert data["cluster"]["users"][0] == data["cluster"]["machines"][0] == EVIL


@pytest.mark.parametrize("runs", [
    [], [run([])], [run([job(0, 0, 0, 10)])], [run([job(0, 5, 0, 0)]), run([], "sjf")],
])  # fmt: skip
def test_a_page_of_little(runs: list[RunResult]) -> None:
    assert len(Page(html(runs, "little")).data["runs"]) == len(runs)


def test_curves_are_quantiles() -> None:
    results = [job(number, 0, 0, number + 1) for number in range(1000)]
    found = page_data([run(results)], "", [])
    curve = found["runs"][0]["curves"]["jct"]
    assert len(curve) == len(found["shares"]) <= 400
    assert (curve[0], curve[-1], found["shares"][-1]) == (1, 1000, 1.0)
    assert curve == sorted(curve)
    for share, value in zip(found["shares"], curve, strict=True):
        assert value == pytest.approx(1 + 999 * share, abs=0.6)


def test_curves_over_time_keep_what_was_used() -> None:
    found = page_data([small()], "", [])
    assert found["spans"] == [500, 100], "and once more, until the last submission"
    whole, until = found["runs"][0]["use"]
    assert sum(whole) * 500 / len(whole) == pytest.approx(50 * 1 + 50 * 3 + 150 * 2, rel=1e-3)
    assert sum(until) * 100 / len(until) == pytest.approx(50 * 1 + 50 * 3, rel=1e-3)
    assert (whole[0], whole[-1], until[-1]) == (1, 0, 3)
    assert found["runs"][0]["most"] == 1


def test_users_beyond_the_largest_are_counted() -> None:
    results = [job(number, 0, 0, number + 1, user=f"u{number}") for number in range(50)]
    users = page_data([run(results), run(results[:10], "sjf")], "", [])["users"]
    assert (len(users["rows"]), users["left_out"]) == (40, 10)
    assert users["rows"][0][0] == "u49"
    assert users["rows"][0][3][1] is None, "under sjf this user's job did not end"


# ------------------------------------------------------------- picture of the cluster


def test_no_picture_without_pieces() -> None:
    assert gantt_data([small()]) is None


def test_pieces_are_kept_as_they_are() -> None:
    pieces = [
        Segment(2, 1, 0, 8.0, 200.0, 500.0),
        Segment(0, 0, 0, 1.0, 0.0, 100.0),
        Segment(1, 0, 1, 2.0, 50.0, 250.0),
    ]
    found = gantt_data([small(segments=pieces, node_names=["a", "b"])])
    assert found is not None
    columns, tick = found["pieces"][0], found["tick"]
    begins = [sum(columns["begin"][: place + 1]) * tick for place in range(3)]
    assert begins == pytest.approx([0, 50, 200], abs=tick)
    assert [long * tick for long in columns["long"]] == pytest.approx([100, 200, 300], abs=tick)
    assert columns["row"] == [0, 0, 1]
    assert (found["machines"], found["sizes"]) == (["a", "b"], [3, 8])
    assert [found["users"][user] for user in found["user"]] == ["ana", "bo", "ana"]
    assert columns["on"] == []


def test_a_job_that_did_not_end_is_in_the_picture() -> None:
    found = gantt_data([small(segments=[Segment(77, 0, 0, 1.0, 0.0, 10.0)])])
    assert found is not None
    assert (found["jobs"], found["at"], found["user"]) == ([77], [-1], [-1])


def test_a_large_cluster_is_thinned_out_evenly() -> None:
    pieces = [Segment(node, node, 0, 8.0, 0.0, 10.0) for node in range(1000)]
    found = gantt_data([small(segments=pieces, node_names=[f"n{node}" for node in range(1000)])])
    assert found is not None
    assert sum(found["sizes"]) <= MAX_LANES
    assert len(found["machines"]) == MAX_LANES // 8
    assert (found["machines"][0], found["all"]) == ("n0", 1000)
    numbers = [int(name[1:]) for name in found["machines"]]
    assert max(b - a for a, b in pairwise(numbers)) <= 63


def test_all_runs_show_the_same_time() -> None:
    many = [
        Segment(number, 0, 0, 1.0, number, number + 5.5)
        for number in range(MAX_SEGMENTS_PER_RUN + 500)
    ]
    found = gantt_data(
        [small(segments=many), small("sjf", segments=many[: MAX_SEGMENTS_PER_RUN - 500])]
    )
    assert found is not None
    assert found["end"] * found["tick"] == pytest.approx(MAX_SEGMENTS_PER_RUN, abs=found["tick"])
    first, second = found["pieces"]
    assert (len(first["job"]), len(second["job"])) == (
        MAX_SEGMENTS_PER_RUN,
        MAX_SEGMENTS_PER_RUN - 500,
    )
    # What goes on beyond the picture ends with it.
    assert len(first["on"]) == 5
    assert max(sum(first["begin"]), 0) <= found["end"]


# ---------------------------------------------------------------------------- its size


def test_80000_jobs_under_four_policies_are_a_small_page() -> None:
    chance = random.Random(7)
    runs = []
    for policy in ("fifo", "backfill", "tiresias", "planner"):
        results, pieces, at = [], [], 0.0
        for number in range(80_000):
            at += chance.expovariate(0.01)
            gpus = float(chance.choice((1, 1, 1, 2, 4, 8)))
            waits, runs_for = chance.expovariate(1e-3), chance.lognormvariate(7, 2)
            results.append(job(number, at, waits, runs_for, gpus, user=f"user{number % 300}"))
            if number < 30_000:
                node = chance.randrange(12)
                pieces.append(Segment(number, node, 0, gpus, at + waits, at + waits + runs_for))
        steps = [(float(each), chance.random() * 96) for each in range(0, int(at), int(at) // 3000)]
        queued = [(moment, int(value)) for moment, value in steps]
        names = [f"node{number}" for number in range(12)]
        runs.append(
            run(
                results,
                policy,
                gpus=96,
                node_names=names,
                gpus_in_use=steps,
                pending_jobs=queued,
                segments=pieces,
            )
        )
    text = html(runs, "Large")
    assert len(text.encode()) < 3_000_000
    picture = Page(text).data["cluster"]
    assert sum(len(each["job"]) for each in picture["pieces"]) <= MAX_SEGMENTS
    assert all(len(each["curves"]["jct"]) <= 400 for each in Page(text).data["runs"])
