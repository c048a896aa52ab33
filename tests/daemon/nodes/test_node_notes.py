"""The notes of `stoker nodes` about a node over SSH."""

from core.scenario import Scenario
from stoker.daemon.handlers.nodes import _notes


def test_attempts_to_be_ended_on_a_node_are_named_by_the_labels_of_their_jobs() -> None:
    scenario = Scenario()
    array = scenario.submit(count=2, array=True)
    scenario.state.record.abandoned_attempts["ant"] = (
        (array + 1, 0),
        (99, 0),
    )  # job 99 has left memory
    (note,) = _notes(scenario.state, "ant", None)
    assert note.endswith(f": job {array}_1, 99")
