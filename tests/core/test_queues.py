"""Queues with devices of their own, over one ledger."""

from typing import Any

from msgspec.structs import replace

from core.scenario import Afar, Scenario, gpus, node
from stoker.core import events as e
from stoker.core.explain.constraints import node_constraints
from stoker.core.explain.why import reason
from stoker.core.launch.launch import launch
from stoker.core.model.resources import NodeFacts, ResourceRequest
from stoker.core.model.spec import Spec
from stoker.core.placement.infeasible import infeasibility_reason
from stoker.core.state.restore import restore
from stoker.daemon.views.queue import queue_view

DISKS = (("hdd", "0", 32_000), ("hdd", "1", 64_000))


def define(story: Scenario, name: str = "q", **limits: Any) -> None:
    story.tell(e.QueueDefined(at=story.now, name=name, **limits))


def disk(size: int) -> ResourceRequest:
    return ResourceRequest(named=(("hdd", size * 1000),))


def held(story: Scenario, job: int, type: str = "hdd") -> list[str]:
    return story.placed(job).names(type)


def test_a_queue_defines_devices_that_the_node_does_not_have():
    story = Scenario()
    define(story, resources=DISKS)
    a, b, c = (story.submit(disk(size), queue="q") for size in (50, 30, 30))
    assert story.plan() == [a, b]
    assert (held(story, a), held(story, b)) == (["1"], ["0"])
    assert story.free("hdd") == {"0": 2000, "1": 14_000}
    story.exited(a)
    assert story.plan() == [c]
    assert held(story, c) == ["1"]


def test_equal_names_of_two_queues_are_one_device():
    story = Scenario()
    define(story, "one", resources=DISKS)
    define(story, "two", resources=(("hdd", "1", 64_000), ("hdd", "2", 8000)))
    a = story.submit(disk(64), queue="one")
    b = story.submit(disk(40), queue="two")
    assert story.plan() == [a]
    story.exited(a)
    assert story.plan() == [b]
    assert held(story, b) == ["1"]


def test_a_queue_s_jobs_use_no_other_devices():
    story = Scenario(gpus=4)
    define(story, "one", resources=(("gpu", "1", 1000), ("gpu", "3", 1000), *DISKS))
    define(story, "two", resources=(("hdd", "5", 99_000),))
    a, b, c = (story.submit(gpus(1), queue="one") for _ in range(3))
    assert story.plan() == [a, b]
    assert (story.on(a), story.on(b)) == (["1"], ["3"])
    assert story.is_(c) == "PENDING"
    box = story.state.cluster.nodes["box"]
    job, spec = story.job(c), story.state.spec(story.job(c))
    for request, lack in (
        (disk(90), "has 64 hdd on one device in all, not 90"),
        (ResourceRequest(named=(("tpu", 1000),)), "has no resource 'tpu'"),
    ):
        asked = story.state.effective_request(job, _with(spec, request))
        assert infeasibility_reason(box, asked) == lack
    asked = story.state.effective_request(job, _with(spec, gpus(1), queue="two"))
    assert infeasibility_reason(box, asked) == "has 0 GPUs among those named, not 1"


def _with(spec: Spec, request: ResourceRequest, **more: Any) -> Spec:
    from msgspec.structs import replace

    return replace(spec, request=request, **more)


def test_what_a_deleted_queue_brought_stays_until_it_is_given_back():
    story = Scenario()
    define(story, resources=DISKS)
    job = story.submit(disk(20), queue="q")
    story.run(job)
    story.tell(e.QueueDeleted(at=story.now, name="q"))
    assert story.free("hdd") == {"0": 12_000}
    story.exited(job)
    assert story.free("hdd") == {}


def test_devices_that_are_brought_survive_a_new_daemon_and_a_restored_state():
    story = Scenario()
    define(story, resources=DISKS)
    job = story.submit(disk(20), queue="q")
    story.run(job)
    facts = story.state.record.nodes["box"]
    assert "hdd" not in facts.types
    story.tell(e.NodeJoined(at=story.now, facts=facts))
    assert story.free("hdd") == {"0": 12_000, "1": 64_000}
    state = restore(story.state.record, story.state.specs, story.state.jobs.values())
    devices = state.cluster.nodes["box"].types["hdd"]
    assert {device.name: device.unallocated for device in devices} == story.free("hdd")


def test_devices_of_a_node_replace_those_that_a_queue_defines():
    story = Scenario(gpus=0)
    bare = story.state.record.nodes["box"]
    story.tell(
        e.NodeJoined(
            at=story.now, facts=NodeFacts("box", {k: v for k, v in bare.types.items() if v})
        )
    )
    define(story, resources=(("gpu", "0", 1000), ("gpu", "7", 1000)))
    assert story.free() == {"0": 1000, "7": 1000}
    other = Scenario(gpus=2).state.record.nodes["box"]
    story.tell(e.NodeJoined(at=story.now, facts=other))
    assert story.free() == {"0": 1000, "1": 1000}


def test_a_strict_queue_is_one_class():
    story = Scenario(gpus=2)
    define(story, "fifo", strict=True)
    define(story, "loose")
    first = story.submit(gpus(1), queue="fifo", limit=9)
    big = story.submit(gpus(2), queue="fifo")
    small = story.submit(gpus(0.5), queue="fifo")
    other = story.submit(gpus(0.5), queue="loose", limit=5)
    assert story.plan() == [first, other]  # over before the head could start
    assert reason(story.state, story.job(small), story.now)[0] == "Priority"
    story.exited(first)
    assert not story.plan()
    story.exited(other)
    assert story.plan() == [big]
    story.exited(big)
    assert story.plan() == [small]


def test_a_strict_queue_has_one_class_however_many_the_requests():
    story = Scenario(gpus=2)
    define(story, "fifo", strict=True)
    for amount in range(1, 200):
        story.submit(gpus(amount / 1000), queue="fifo")
    assert len(story.state.pending.classes) == 1
    define(story, "fifo", strict=False)
    assert len({id(found) for found in story.state.pending.class_of.values()}) == 199
    assert len(story.plan()) == 62  # 1 + 2 + … thousandths fill two GPUs


def test_a_limit_of_gpus_counts_what_the_head_of_a_strict_queue_asks_for():
    story = Scenario(gpus=3)
    define(story, "fifo", strict=True, max_gpus=2000)
    a, b = story.submit(gpus(1), queue="fifo"), story.submit(gpus(1.5), queue="fifo")
    assert story.plan() == [a]
    story.exited(a)
    assert story.plan() == [b]


def test_a_share_of_each_named_gpu_in_the_order_typed():
    story = Scenario(gpus=3)
    slot = gpus(1, required=("2", "0"), fixed_share=500)
    a, b, c = (story.submit(slot) for _ in range(3))
    whole = story.submit(gpus(1))
    assert story.plan() == [a, b, whole]
    assert (story.on(a), story.on(whole)) == (["2", "0"], ["1"])
    assert story.is_(c) == "PENDING"
    lone = story.state.effective_request(story.job(c), story.state.spec(story.job(c)))
    assert infeasibility_reason(story.state.cluster.nodes["box"], lone) is None
    missing = gpus(1, required=("2", "9"), fixed_share=500)
    assert infeasibility_reason(story.state.cluster.nodes["box"], missing) is not None


def test_devices_are_written_for_their_types_and_other_braces_stay():
    story = Scenario(gpus=2)
    define(
        story,
        resources=(("gpu", "0", 1000), ("gpu", "1", 1000), ("queue-cpu", "5", 1000), *DISKS),
    )
    asked = ResourceRequest(gpus=gpus(1.5).gpus, named=(("hdd", 9000), ("queue-cpu", 1000)))
    job = story.submit(asked, queue="q", fill=True)
    story.job(job).command = ("t", "{gpu}", "x{hdd}y{cpu}${gpu}", "{tpu}", '{"a":1}', "{}")
    story.plan()
    state = story.state
    how = launch(
        story.job(job), state.spec(story.job(job)), story.placed(job),
        state.cluster.nodes["box"], 0.0, "/l", "t", "/s",
    )  # fmt: skip
    assert how.argv == ("t", "0,1", "x0y5${gpu}", "{tpu}", '{"a":1}', "{}")
    assert how.placeholders == {"{gpu}": "0,1", "{hdd}": "0", "{cpu}": "5"}


def test_a_door_s_history_is_wiped_from_a_moment_on():
    story = Scenario()
    story.tell(e.HistoryCleared(at=1234.0, client="auto"))
    assert story.state.record.history_cleared == {"auto": 1234.0}


def test_a_fraction_in_a_queue_goes_where_it_wastes_least():
    story = Scenario(gpus=3)
    define(story, resources=tuple(("gpu", str(n), 1000) for n in range(3)))
    whole, half = story.submit(gpus(1), queue="q"), story.submit(gpus(0.5), queue="q")
    story.plan()
    story.exited(whole)
    more = story.submit(gpus(0.5), queue="q")
    story.plan()
    assert (story.on(half), story.on(more)) == (["1"], ["1"])


def test_the_devices_of_a_queue_move_to_the_next_node_when_the_first_is_removed():
    story = Afar(gpus=1)  # after every fact, it compares memory with what rows would give
    story.tell(e.QueueDefined(at=story.now, name="own", resources=(("hdd", "0", 32_000),)))
    story.tell(e.NodeJoined(at=story.now, facts=node(1, name="renamed")))
    story.tell(e.NodeRemoved(at=story.now, name="box"))
    job = story.submit(ResourceRequest(named=(("hdd", 20_000),)), queue="own")
    assert story.plan() == [job]
    assert story.where(job) == ["renamed"]


def counted(number: int) -> tuple[tuple[str, str, int], ...]:
    """A queue's `{gpu:NUMBER}`."""
    return tuple(("gpu", str(name), 1000) for name in range(number))


def without_gpus(story: Scenario) -> None:
    """The head of the lab has no GPU at all."""
    facts = story.state.record.nodes["box"]
    types = {type: devices for type, devices in facts.types.items() if type != "gpu"}
    story.tell(e.NodeJoined(at=story.now, facts=NodeFacts("box", types)))


def places(story: Afar, *jobs: int) -> list[tuple[str, list[str]]]:
    return [(story.placed(job).node, story.on(job)) for job in jobs]


def test_a_queue_of_four_gpus_has_two_on_each_of_two_nodes():
    story = Afar()
    without_gpus(story)
    story.add("a")
    story.add("b")
    define(story, resources=counted(4))
    jobs = [story.submit(gpus(1), queue="q") for _ in range(5)]
    assert story.plan() == jobs[:4]
    assert places(story, *jobs[:4]) == [("a", ["0"]), ("a", ["1"]), ("b", ["0"]), ("b", ["1"])]
    assert "gpu" not in story.state.cluster.nodes["box"].types
    lone = story.state.effective_request(story.job(jobs[4]), story.state.spec(story.job(jobs[4])))
    many = replace(lone, gpus=replace(lone.gpus, amount=3000))
    assert (
        infeasibility_reason(story.state.cluster.nodes["a"], many)
        == "has 2 GPUs among those named, not 3"
    )


def test_an_explanation_counts_only_the_gpus_of_the_queue_on_each_node():
    story = Afar()
    without_gpus(story)
    story.add("a")
    story.add("b")
    define(story, resources=counted(3))
    alone, other, pair = (story.submit(gpus(n), queue="q") for n in (1, 1, 2))
    assert story.plan() == [alone, other]
    request = story.state.effective_request(story.job(pair), story.state.spec(story.job(pair)))
    views = node_constraints(story.state, story.job(pair), request, story.now, story.boot)
    texts = {view.node: [each.text for each in view.constraints] for view in views}
    assert texts == {
        "box": ["box has no GPU"],
        "a": ["needs 2 GPUs, 0 free on a"],
        "b": ["b has 1 GPU among those named, not 2"],
    }


def test_a_queue_of_two_gpus_uses_no_third_one_of_the_same_name():
    story = Afar()
    without_gpus(story)
    story.add("a")
    story.add("b")
    define(story, resources=counted(2))
    jobs = [story.submit(gpus(1), queue="q") for _ in range(3)]
    assert story.plan() == jobs[:2]
    assert places(story, *jobs[:2]) == [("a", ["0"]), ("a", ["1"])]
    pair = story.submit(gpus(2), queue="q")
    story.exited(jobs[0])
    story.exited(jobs[1])
    story.plan()
    story.exited(jobs[2])
    assert story.plan() == [pair]
    assert places(story, pair) == [("a", ["0", "1"])]


def test_the_gpus_that_a_queue_declared_give_way_to_those_of_a_node_that_comes():
    story = Afar()
    without_gpus(story)
    define(story, resources=counted(2))
    first = story.submit(gpus(1), queue="q")
    story.run(first)
    waits = story.submit(gpus(2), queue="q")
    assert story.plan() == []
    story.add("a")
    assert story.plan() == [waits]
    assert places(story, waits) == [("a", ["0", "1"])]
    story.exited(first)
    assert story.state.cluster.nodes["box"].types.get("gpu", []) == []
    story.exited(waits)
    story.tell(e.NodeRemoved(at=story.now, name="a"))
    assert story.free() == {"0": 1000, "1": 1000}


def test_gpus_of_the_first_node_come_first_and_others_fill_up():
    story = Afar(gpus=1)
    define(story, resources=counted(2))
    story.add("a")
    jobs = [story.submit(gpus(1), queue="q") for _ in range(3)]
    assert story.plan() == jobs[:2]
    assert places(story, *jobs[:2]) == [("box", ["0"]), ("a", ["0"])]
    shown = queue_view(story.state.record.queues["q"], story.state).resources
    assert [(each.device, each.free) for each in shown] == [("0", "0"), ("a/0", "0")]


def test_a_queue_takes_devices_in_the_words_of_other_commands():
    story = Afar()
    story.add("a")
    for words, expected in (
        (("a/0",), [("a", ["0"])]),
        (("a/gpu:1",), [("a", ["1"])]),
        (("a/all",), [("a", ["0"])]),
    ):
        define(story, devices=words)
        job = story.submit(gpus(1), queue="q")
        assert story.plan() == [job]
        assert places(story, job) == expected
        story.exited(job)
