"""The counter of live bytes: what counts, for how long, and under which name."""

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from tests.trainer.launches import NEEDS_TORCH, Late

pytestmark = NEEDS_TORCH

torch: Any = Late("torch")
fake_tensor: Any = Late("torch._subclasses.fake_tensor")
live: Any = Late("simulator.lab.trainer.watch")
KIB = 1024


def modes() -> list[AbstractContextManager[object]]:
    return [nullcontext(), fake_tensor.FakeTensorMode()]


@pytest.mark.parametrize("fake", [False, True], ids=["real", "fake"])
def test_a_storage_counts_once_and_until_its_last_view_is_gone(fake: bool) -> None:
    with modes()[fake], live.LiveBytes() as counter:
        whole = torch.empty(KIB, dtype=torch.uint8)
        part = whole[:10]
        assert counter.current == KIB
        del whole
        assert counter.current == KIB
        del part
        assert counter.current == 0
        assert counter.peak == KIB


@pytest.mark.parametrize("fake", [False, True], ids=["real", "fake"])
def test_the_peak_is_the_most_at_once_by_category(fake: bool) -> None:
    with modes()[fake], live.LiveBytes() as counter:
        kept = torch.zeros(KIB, dtype=torch.float32)
        counter.register("parameters", [kept, None])
        passing = kept + 1.0
        with counter.born_as("optimizer", "step"):
            state = kept * 2.0
        assert counter.peak == 12 * KIB
        assert counter.peak_parts == {"parameters": 4 * KIB, live.ACTIVATIONS: 4 * KIB, "optimizer": 4 * KIB}
        assert counter.peak_moment == "step"
        del passing, state
        assert counter.current == 4 * KIB
        assert counter.peak == 12 * KIB
        counter.reset_peak()
        assert (counter.peak, counter.peak_parts) == (4 * KIB, {"parameters": 4 * KIB})


def test_what_was_there_before_counts_when_it_is_declared() -> None:
    early = torch.zeros(KIB, dtype=torch.uint8)
    with live.LiveBytes() as counter:
        assert counter.current == 0
        counter.register("parameters", [early])
        counter.register("other", [early])
        assert counter.parts == {"other": KIB}
        del early
        assert counter.current == 0


@pytest.mark.parametrize("fake", [False, True], ids=["real", "fake"])
def test_a_storage_resized_in_place_counts_for_its_new_size(fake: bool) -> None:
    with modes()[fake], live.LiveBytes() as counter:
        tensor = torch.empty(KIB, dtype=torch.uint8)
        tensor.untyped_storage().resize_(0)
        assert counter.current == 0
        tensor.untyped_storage().resize_(2 * KIB)
        assert (counter.current, counter.peak) == (2 * KIB, 2 * KIB)


def test_a_backward_pass_is_told_from_a_forward_pass() -> None:
    with live.LiveBytes() as counter:
        weight = torch.ones(KIB, requires_grad=True)
        counter.register("parameters", [weight])
        kept = weight.sin()
        assert counter.parts == {"parameters": 4 * KIB, live.ACTIVATIONS: 4 * KIB}
        kept.backward(torch.ones(KIB))
        del kept
        counter.register("gradients", [weight.grad])
        assert counter.parts == {"parameters": 4 * KIB, "gradients": 4 * KIB}
        assert counter.peak_moment == "backward"
        assert counter.peak_parts[live.TEMPORARY] > 0
        assert sum(counter.peak_parts.values()) == counter.peak


def test_counting_ends_with_the_context() -> None:
    resize = torch.UntypedStorage.resize_
    with live.LiveBytes() as counter:
        kept = torch.empty(KIB, dtype=torch.uint8)
    later = torch.empty(KIB, dtype=torch.uint8)
    assert counter.peak == KIB
    assert torch.UntypedStorage.resize_ is resize
    del kept, later
    gc.collect()
    assert counter.peak == KIB


def test_a_figure_does_not_depend_on_the_run() -> None:
    def peak() -> tuple[int, dict[str, int]]:
        with fake_tensor.FakeTensorMode(), live.LiveBytes() as counter:
            layer = torch.nn.Linear(64, 64)
            optimizer = torch.optim.AdamW(layer.parameters(), foreach=True)
            for _ in range(2):
                layer(torch.zeros(8, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            return counter.peak, counter.peak_parts

    assert peak() == peak()
