"""Bad input: each case is an error that names the layer, the op or the hyperparameter."""

from typing import Any

import pytest
import torch
from fuse_models import Cnn, Mlp, batches, loss_of
from torch import Tensor, nn
from torch.nn import functional

from headrace_torch import hydro
from headrace_torch.hydro.fuse.member import FIELDS

BATCH = batches("mlp", 1, dtype=torch.float32)[0]


@pytest.mark.parametrize(
    ("member", "optimizer", "message"),
    [
        (
            {"lr": 1e-3, "wd": 0.1},
            "adamw",
            "member 1: 'wd' is not a hyperparameter that members may differ in",
        ),
        ({"lr": 1e-3, "hidden": 64}, "adamw", "'hidden' .* belongs to a group of its own"),
        ({}, "adamw", "member 1 has no lr"),
        ({"lr": -1.0}, "adamw", "member 1: lr must be a finite number, at least 0, not -1.0"),
        ({"lr": float("nan")}, "adamw", "lr must be a finite number"),
        ({"lr": 1e-3, "betas": (0.9, 1.0)}, "adam", r"betas must be two numbers in \[0, 1\)"),
        ({"lr": 1e-3, "momentum": 0.9}, "adamw", "momentum is a setting of sgd, not of adamw"),
        ({"lr": 1e-3, "betas": (0.9, 0.99)}, "sgd", "betas is a setting of adam and adamw, not of sgd"),
        ({"lr": 1e-3, "nesterov": True}, "sgd", "nesterov needs a momentum and no dampening"),
        ({"lr": 1e-3, "dropout": 1.5}, "sgd", r"dropout must be in \[0, 1\]"),
        ({"lr": 1e-3, "clip": 0.0}, "sgd", "clip must be positive"),
        ({"lr": 1e-3, "batch_size": 0}, "sgd", "batch_size must be a whole number of rows"),
        ({"lr": 1e-3, "schedule": "cosine"}, "sgd", r"schedule must have setting\(step, lr\)"),
        ({"lr": 1e-3, "scaler": True}, "sgd", "scaler must be a LossScale"),
        ({"lr": 1e-3, "model": {"hidden": 8}}, "sgd", "are arguments for a factory"),
    ],
)
def test_a_bad_member(member: dict[str, Any], optimizer: Any, message: str) -> None:
    with pytest.raises(hydro.MemberError, match=message):
        hydro.fuse(Mlp(), [{"lr": 1e-3}, member], optimizer)


def test_one_member_where_a_list_belongs() -> None:
    with pytest.raises(hydro.MemberError, match=r"members must be a list .*: \[\{'lr': 0.001\}\]"):
        hydro.fuse(Mlp(), {"lr": 1e-3})  # type: ignore[arg-type]  # this is what is tested
    group = hydro.fuse(Mlp(), [{"lr": 1e-3}])
    with pytest.raises(hydro.MemberError, match="members must be a list"):
        group.add(hydro.Member(lr=0.1))  # type: ignore[arg-type]  # this is what is tested
    with pytest.raises(hydro.MemberError, match=r"member 1 must be a mapping such as .*, not 0.1"):
        hydro.fuse(Mlp(), [{"lr": 1e-3}, 0.1])  # type: ignore[list-item]  # this is what is tested


class _OfModel(nn.Module):
    """A loss that calls the model itself."""

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        return loss_of(model, batch)


class _Annotated(nn.Module):
    def forward(self, policy: "nn.Module", batch: Any) -> Tensor:
        return loss_of(policy, batch)


@pytest.mark.parametrize("kind", [_OfModel, _Annotated])
def test_a_module_may_be_a_loss_of_the_model_and_the_batch(kind: type[nn.Module]) -> None:
    plain = hydro.fuse(Mlp(), [{"lr": 1e-3}], engine="vmap").step(BATCH, loss_of)
    assert hydro.fuse(Mlp(), [{"lr": 1e-3}], engine="vmap").step(BATCH, kind()).shape == plain.shape


def test_a_loss_that_cannot_be_called() -> None:
    with pytest.raises(hydro.FuseError, match=r"loss_fn must be a function of .*, not 0.5"):
        hydro.fuse(Mlp(), [{"lr": 1e-3}]).step(BATCH, 0.5)


def test_a_member_object_is_checked_like_a_mapping() -> None:
    assert len(hydro.fuse(Mlp, [hydro.Member(lr=1e-3), hydro.Member(lr=1e-2, betas=(0.8, 0.9))])) == 2
    with pytest.raises(hydro.MemberError, match="momentum is a setting of sgd"):
        hydro.fuse(Mlp, [hydro.Member(lr=1e-3, momentum=0.9)])


def test_every_field_has_a_rule() -> None:
    defaults = hydro.Member(lr=1e-3)
    for name, field in FIELDS.items():
        assert field.valid(getattr(defaults, name)), name
        assert not field.valid(object()), name


def test_members_with_other_static_shapes() -> None:
    with pytest.raises(
        hydro.StaticShapeError,
        match=r"layer body\.0: weight has shape \(32, 16\) in member 0 and \(48, 16\) in member 2",
    ):
        hydro.fuse(Mlp, [{"lr": 1e-3}, {"lr": 1e-2}, {"lr": 1e-3, "model": {"hidden": 48}}])
    group = hydro.fuse(Mlp, [{"lr": 1e-3}])
    with pytest.raises(hydro.StaticShapeError, match="fuse those of equal shape"):
        group.add([{"lr": 1e-3, "model": {"hidden": 48}}])
    assert group.ids == [0]


def test_arguments_that_keep_shapes_are_fine() -> None:
    group = hydro.fuse(Mlp, [{"lr": 1e-3}, {"lr": 1e-3, "model": {"rate": 0.0}}], workers=0)
    assert group.step(BATCH, loss_of).shape == (2,)


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (
            nn.CrossEntropyLoss(reduction="none"),
            r"the loss has shape \(8,\) .* mean over members would divide",
        ),
        (lambda model, batch: float(loss_of(model, batch).detach()), "must be a tensor, not float"),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "grouped", "separate"])
def test_a_loss_that_is_not_one_number_per_member(loss_fn: Any, message: str, engine: Any) -> None:
    with pytest.raises(hydro.LossShapeError, match=message):
        hydro.fuse(Mlp, [{"lr": 1e-3}] * 2, engine=engine).step(BATCH, loss_fn)


def test_criteria_are_called_on_output_and_target() -> None:
    states = []
    for loss_fn in (loss_of, nn.CrossEntropyLoss(), functional.cross_entropy):
        group = hydro.fuse(Mlp, [{"lr": 1e-2}] * 2, engine="grouped")
        group.step(BATCH, loss_fn)
        states.append(group.member_state(0)["model"]["head.weight"])
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])


def test_no_members_no_engine_no_optimizer() -> None:
    with pytest.raises(hydro.FuseError, match="at least one member"):
        hydro.fuse(Mlp, [])
    with pytest.raises(hydro.FuseError, match="engine must be one of auto, grouped"):
        hydro.fuse(Mlp, [{"lr": 1}], engine="magic")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(hydro.FuseError, match="optimizer must be one of sgd, adam, adamw"):
        hydro.fuse(Mlp, [{"lr": 1}], "lion")  # type: ignore[arg-type]  # what is refused


def test_mixed_dtypes_name_the_parameter() -> None:
    model = Mlp()
    model.head.double()
    with pytest.raises(
        hydro.FuseError, match=r"head\.weight is torch\.float64 and body\.0\.weight is torch\.float32"
    ):
        hydro.fuse(model, [{"lr": 1e-3}])


def test_a_model_without_trainable_parameters() -> None:
    with pytest.raises(hydro.FuseError, match="no parameter that requires a gradient"):
        hydro.fuse(nn.ReLU(), [{"lr": 1e-3}])


def test_batch_sizes_beyond_the_batch() -> None:
    group = hydro.fuse(Mlp, [{"lr": 1e-3}, {"lr": 1e-3, "batch_size": 9}], workers=0)
    with pytest.raises(hydro.MemberError, match="member 1: batch_size 9 is more than the batch's 8 rows"):
        group.step(BATCH, loss_of)


def test_padding_with_batch_norm_names_the_layer() -> None:
    group = hydro.fuse(Cnn, [{"lr": 1e-3}, {"lr": 1e-3, "batch_size": 4}], workers=0, batching="pad")

    def each(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    with pytest.raises(hydro.FuseError, match="layer norm normalises over the batch"):
        group.step(batches("cnn", 1, dtype=torch.float32)[0], each)


def test_padding_needs_a_loss_per_row() -> None:
    group = hydro.fuse(Mlp, [{"lr": 1e-3}, {"lr": 1e-3, "batch_size": 4}], workers=0, batching="pad")
    with pytest.raises(hydro.LossShapeError, match="one number per row"):
        group.step(BATCH, loss_of)


def test_one_batch_per_member_means_just_that() -> None:
    group = hydro.fuse(Mlp, [{"lr": 1e-3}] * 3, workers=0)
    with pytest.raises(hydro.FuseError, match="PerMember has 2 batches and the group 3 members"):
        group.step(hydro.PerMember([BATCH, BATCH]), loss_of)
