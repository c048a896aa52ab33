"""A script for the type checker; checked by test_typing, never run."""

from typing import assert_type

import stoker


def square(x: int, *, twice: bool = False) -> float:
    return float(x * x)


def main() -> None:
    client = stoker.Client()
    assert_type(client.submit(["true"], gpus=1, name="x", time="2h"), stoker.Job)
    assert_type(client.submit("true", array="0-3"), list[stoker.Job])
    assert_type(client.show(5).exit_code, int | None)
    for event in client.events():
        assert_type(event, stoker.Event)
    with stoker.Executor(gpus=1) as executor:
        future = executor.submit(square, 3, twice=True)
        assert_type(future, stoker.Future[float])
        assert_type(future.result(), float)
        assert_type(list(executor.map(square, [1, 2])), list[float])
        executor.submit(square, "three")  # type: ignore[arg-type]
    client.submit("true", gpu=1)  # type: ignore[call-overload]
    client.cancel(future, 5, "last", [client.submit("true")])
    try:
        client.why(7)
    except stoker.NotFound as error:
        assert_type(error.exit_code, int)
