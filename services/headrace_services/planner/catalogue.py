"""What ships with the planner: model presets, devices and fitted constants, each with its source, by name."""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from headrace.errors import InvalidFieldError, Violation
from headrace.userfile import MIB, UserFile
from headrace_services.planner.blocks import model_from_description
from headrace_services.planner.checking import Checker, nearest
from headrace_services.planner.cluster import (
    Cluster,
    Device,
    Efficiencies,
    checked_cluster,
    device_from_description,
    efficiencies_from,
)
from headrace_services.planner.huggingface import is_configuration, model_from_configuration
from headrace_services.planner.layer_profile import is_profile, model_from_profile
from headrace_services.planner.model import Model

ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "a100": "a100-80g",
        "h100": "h100-80g",
        "h200": "h200-141g",
        "b200": "b200-180g",
        "ascend910b": "ascend910",
    }
)
DESCRIPTION: Final = UserFile(largest_bytes=4 * MIB, remedy="Name a description in JSON.")
LONGEST_SEQUENCE: Final = 10**8


def models() -> tuple[str, ...]:
    """The names of the presets."""
    return tuple(_data("models.json"))


def devices() -> tuple[str, ...]:
    """The names of the devices."""
    return tuple(_data("devices.json"))


def profiles() -> dict[str, Efficiencies]:
    """Fitted constants by profile."""
    return {name: efficiencies_from(entry["constants"]) for name, entry in _data("efficiencies.json").items()}


def profile_source(name: str) -> str:
    """What a profile was fitted on."""
    return str(_data("efficiencies.json")[name]["source"])


def model(name: str, sequence: int | None = None) -> Model:
    """A preset, or a JSON file: a description (`blocks`), a profile (`layers`) or a Hugging Face config.json.

    A sequence length replaces that of a preset or a description, and must be given for a configuration. Raises
    InvalidFieldError."""
    presets = _data("models.json")
    if name.lower() in presets:
        return described_model(name.lower(), presets[name.lower()], sequence)
    if name.endswith(".json"):
        return described_model(Path(name).stem, read_description("model", Path(name)), sequence)
    raise _unknown("model", name, "is not a known model", f"{nearest(name, presets)} Or name a .json file.")


def described_model(name: str, description: Mapping[str, Any], sequence: int | None) -> Model:
    """The model of a description, a configuration or a profile, with sequences of this length.

    Raises InvalidFieldError.
    """
    if sequence is not None:
        check = Checker("")
        check.integer({"sequence": sequence}, "sequence", low=1, high=LONGEST_SEQUENCE)
        check.done()
    if is_profile(description):
        if sequence is not None:
            message = "does not apply to a profile: its samples have no length"
            raise _unknown("sequence", str(sequence), message, "Leave the sequence length out.")
        return model_from_profile(name, description)
    if is_configuration(description):
        return model_from_configuration(name, description, sequence)
    return model_from_description(
        name, description if sequence is None else {**description, "sequence": sequence}
    )


def cluster(name: str) -> Cluster:
    """DEVICE-COUNT, such as a100-80g-64, or a JSON file with the device's numbers and `devices`.

    Raises InvalidFieldError."""
    if name.endswith(".json"):
        description = read_description("cluster", Path(name))
        count = description.get("devices")
        if not isinstance(count, int) or isinstance(count, bool):
            raise _unknown(
                "cluster.devices", str(count), "must be a whole number", "Say how many devices there are."
            )
        return checked_cluster(
            device_from_description(Path(name).stem, description, profiles()), count, description
        )
    found = re.fullmatch(r"(?P<device>.+)-(?P<count>\d+)", name)
    if found is None or found["device"].lower() not in {*devices(), *ALIASES}:
        known = [*devices(), *ALIASES]
        remedy = nearest(found["device"] if found else name, known)
        message = "is not a known cluster"
        raise _unknown("cluster", name, message, f"Write DEVICE-COUNT, such as a100-80g-64. {remedy}")
    return checked_cluster(device(found["device"]), int(found["count"]))


def calibration(path: Path) -> Efficiencies:
    """The constants in a file that `headrace plan calibrate --out` wrote. Raises InvalidFieldError."""
    profiles = read_description("constants", path)
    entry = next(iter(profiles.values()), None)
    if len(profiles) != 1 or not isinstance(entry, dict) or not isinstance(entry.get("constants"), dict):
        remedy = "Write it with `headrace plan calibrate ROWS --out FILE`."
        raise _unknown("constants", str(path), "holds no constants of one cluster", remedy)
    return efficiencies_from(entry["constants"])


@cache
def device(name: str) -> Device:
    """A device by name or alias."""
    key = ALIASES.get(name.lower(), name.lower())
    return device_from_description(key, _data("devices.json")[key], profiles())


@cache
def _data(file: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        resources.files(__package__).joinpath("data", file).read_text("utf-8")
    )
    return loaded


def read_description(field: str, path: Path) -> dict[str, Any]:
    loaded = DESCRIPTION.json(path)
    if not isinstance(loaded, dict):
        raise _unknown(field, str(path), "must hold one JSON object", "Write {...}.")
    return loaded


def _unknown(field: str, value: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=value, message=message, remedy=remedy)])
