"""Schedules: multiples of the first temperature, free of units."""

import math

import pytest

import entmeans
from entmeans.schedules import get_schedule

SCHEDULES = [
    *(entmeans.Geometric(), entmeans.Geometric(ratio=0.01, steps=3), entmeans.Geometric(steps=0)),
    *(entmeans.Linear(), entmeans.Linear(steps=1), entmeans.Linear(steps=0)),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_falls_from_1_to_0_in_its_number_of_steps_and_stays(schedule):
    values = [schedule(step) for step in range(schedule.steps + 5)]
    assert values[0] == (1.0 if schedule.steps else 0.0)
    assert all(0 < value <= 1 for value in values[: schedule.steps])
    assert values == sorted(values, reverse=True)
    assert values[schedule.steps :] == [0.0] * 5


def test_geometric_multiplies_by_its_ratio():
    schedule = entmeans.Geometric(ratio=0.3, steps=40)
    for step in range(39):
        assert schedule(step + 1) == pytest.approx(0.3 * schedule(step), rel=1e-14)


def test_linear_takes_equal_steps():
    schedule = entmeans.Linear(steps=7)
    for step in range(7):
        assert schedule(step) - schedule(step + 1) == pytest.approx(1 / 7, rel=1e-14)


def test_constant_is_1():
    assert {entmeans.Constant()(step) for step in range(1000)} == {1.0}


def test_schedules_are_values():
    assert entmeans.Geometric(0.5, 3) == entmeans.Geometric(ratio=0.5, steps=3)
    assert len({entmeans.Linear(4), entmeans.Linear(4), entmeans.Constant()}) == 2
    assert repr(entmeans.Linear(4)) == "Linear(steps=4)"
    with pytest.raises(AttributeError):
        entmeans.Linear().steps = 3


@pytest.mark.parametrize("ratio", [0.0, 1.0, -0.5, 2.0, math.nan, math.inf])
def test_a_ratio_that_does_not_cool_is_named(ratio):
    with pytest.raises(ValueError, match=f"ratio must.*{ratio}"):
        entmeans.Geometric(ratio=ratio)


@pytest.mark.parametrize("schedule", [entmeans.Geometric, entmeans.Linear])
def test_a_negative_number_of_steps_is_named(schedule):
    with pytest.raises(ValueError, match=r"steps must.*-1"):
        schedule(steps=-1)


def test_names_stand_for_the_defaults():
    assert get_schedule("geometric") == entmeans.Geometric()
    assert get_schedule("linear") == entmeans.Linear()


def test_any_function_is_a_schedule():
    def halve(step):
        return 0.5**step

    assert get_schedule(halve) is halve


@pytest.mark.parametrize("schedule", ["exponential", "", None, 0.5, ["linear"]])
def test_an_unknown_schedule_is_named_with_the_choices(schedule):
    with pytest.raises(ValueError, match="geometric, linear") as caught:
        get_schedule(schedule)
    assert repr(schedule) in str(caught.value)
