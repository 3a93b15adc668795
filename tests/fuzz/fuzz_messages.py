"""Messages drawn from the contract's descriptors: plausible fields, fields at their bounds, and hostile ones.

A message starts as a plausible one, made of things that exist (`Known`), so that calls get past the edge; then
some of its fields are drawn again. Nothing here knows a service: a new field is drawn like the others.
"""

import base64
import hashlib
import json
import math
import random
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from headrace.bounds.checker import bound_of, map_value
from headrace.bounds.kinds import Blob, Entries, Items, Json, Real, Span, Text, Told, Whole

WHOLE_TYPES = {FieldDescriptor.TYPE_INT32: 32, FieldDescriptor.TYPE_INT64: 64}
MOST_BYTES = 5 * 1024**2
"""A little more than gRPC accepts: larger messages cost only the attacker."""
HOSTILE_TEXTS = (
    "\0",
    "a\0b",
    "\x1b[2J\r\n",
    "'; DROP TABLE study; --",
    "../../../etc/passwd",
    "\u202eabc\u200b",
    "٣" * 30,
    "9" * 5000,
    "-1",
    "NaN",
    "studies/",
    "studies/%00/trials/1",
    "studies/a/trials/" + "9" * 5000,
    "{" * 2000,
    "𝔘" * 70_000,
    "x" * 300_000,
)
HOSTILE_JSON = (
    "{",
    "[" * 10_000,
    '{"a":' * 10_000,
    '{"devices": ' + "9" * 5000 + "}",
    '{"devices": 1e400}',
    '{"devices": NaN}',
    "null",
    '{"devices": 1000000000, "kind": "a100-80g"}',
    '{"model_type": "llama", "num_hidden_layers": 1000000000, "hidden_size": 1000000000}',
    '{"model_type": "llama", "num_hidden_layers": -1, "hidden_size": 0, "num_attention_heads": 0}',
)
HOSTILE_REALS = (math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308, -1e308, 1e17)


@dataclass(slots=True)
class Known:
    """What exists, as far as answers have shown."""

    studies: list[str] = field(default_factory=lambda: ["fuzz-0"])
    leases: list[tuple[str, str, int]] = field(default_factory=list)
    """Lease, trial and attempt."""
    runtime_leases: list[str] = field(default_factory=lambda: ["none"])
    tokens: list[str] = field(default_factory=list)
    """Page tokens."""
    given: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Valid texts, by the fields that accept them."""
    archives: tuple[bytes, ...] = (b"",)


class Draw:
    """Draws messages. The randomness is Hypothesis's, so a run repeats with its seed."""

    def __init__(self, chance: random.Random, known: Known) -> None:
        self.chance = chance
        self.known = known

    def message(self, kind: Descriptor, *, wild: float) -> Message:
        """A message of a type. Each field is drawn again with the probability `wild`, hostile half of the time."""
        made = GetMessageClass(kind)()
        skipped = {one for group in kind.oneofs for one in self._others(group.fields)}
        for one in kind.fields:
            if one in skipped or self.chance.random() < 0.25:
                continue
            try:
                self._set(made, one, wild)
            except (ValueError, TypeError, UnicodeEncodeError):  # what no client can send
                made.ClearField(one.name)
        return made

    def spoil(self, message: Message, *, count: int) -> None:
        """Draw that many fields of a message again, wherever they are in it."""
        for _ in range(count):
            places = list(_places(message))
            if not places:
                return  # an empty message has nothing to spoil
            here, one = self.chance.choice(places)
            try:
                self._set(here, one, wild=1.0)
            except (ValueError, TypeError, UnicodeEncodeError):
                here.ClearField(one.name)

    def _others(self, fields: Any) -> list[FieldDescriptor]:
        chosen = self.chance.choice(list(fields))
        return [one for one in fields if one is not chosen]

    def _set(self, message: Message, one: FieldDescriptor, wild: float) -> None:
        bound = _bound(one)
        if map_value(one) is not None:
            assert isinstance(bound, Entries)
            self._fill_map(message, one, bound, wild)
        elif one.is_repeated:
            assert isinstance(bound, Items)
            count = self._count(bound.most, wild)
            if count:
                element = self._value(one, bound.each, wild)
                getattr(message, one.name).extend([element] * min(count, _fitting(element)))
        elif one.message_type is not None:
            value = self._value(one, bound, wild)
            getattr(message, one.name).CopyFrom(value)
        else:
            setattr(message, one.name, self._value(one, bound, wild))

    def _fill_map(self, message: Message, one: FieldDescriptor, bound: Entries, wild: float) -> None:
        inner = map_value(one)
        assert inner is not None
        entries = getattr(message, one.name)
        count = self._count(bound.most, wild)
        for number in range(count):
            if number % 1000 == 999 and message.ByteSize() > MOST_BYTES:
                return
            name = self._text(
                "x" if number == 0 else f"x{number}", bound.key.longest, wild if number < 3 else 0
            )
            if number == 0 and one.name == "metrics":
                name = "loss"
            value = self._value(inner, bound.value, wild)
            if isinstance(value, Message):
                entries[name].CopyFrom(value)
            else:
                entries[name] = value

    def _count(self, most: int, wild: float) -> int:
        if self.chance.random() < wild / 4:
            return self.chance.choice([0, most, most + 1, min(10 * most, 60_000)])
        return self.chance.choice([0, 1, 1, 2, 3])

    def _value(self, one: FieldDescriptor, bound: Any, wild: float) -> Any:
        if one.message_type is not None and one.message_type.full_name.startswith("headrace."):
            if one.message_type.name == "LeaseRef" and self.known.leases and self.chance.random() > wild / 2:
                lease_id, trial, attempt = self.chance.choice(self.known.leases)
                return GetMessageClass(one.message_type)(lease_id=lease_id, trial=trial, attempt=attempt)
            return self.message(one.message_type, wild=wild)
        if one.type == FieldDescriptor.TYPE_BYTES:
            longest = bound.longest if isinstance(bound, Blob) else 256
            wild_ones = (b"", b"\x1f\x8b" + b"\0" * 100, bytes(longest), bytes(longest + 1))
            return self.chance.choice(wild_ones if self.chance.random() < wild else self.known.archives)
        if isinstance(bound, Span):
            seconds = self._whole(bound.least_s, bound.most_s, 64, wild)
            nanos = self.chance.choice([0, 0, 1, 999_999_999, 10**9, -1, 2**31 - 1]) if wild else 0
            return GetMessageClass(one.message_type)(seconds=seconds, nanos=nanos)
        if one.message_type is not None:
            return self.message(one.message_type, wild=wild)
        if one.enum_type is not None:
            return self.chance.choice([*one.enum_type.values_by_number, *([77, -1] if wild else [])])
        if one.type == FieldDescriptor.TYPE_BOOL:
            return self.chance.random() < 0.5
        if one.type == FieldDescriptor.TYPE_DOUBLE:
            return self._real(bound, wild)
        if one.type in WHOLE_TYPES:
            least, most = (bound.least, bound.most) if isinstance(bound, Whole) else (-100, 100)
            return self._whole(least, most, WHOLE_TYPES[one.type], wild)
        if isinstance(bound, Json):
            return self.chance.choice(HOSTILE_JSON)
        longest = bound.longest if isinstance(bound, Text | Told) else 256
        return self._text(self._plausible(one), longest, wild)

    def _whole(self, least: int, most: int, bits: int, wild: float) -> int:
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        value = self.chance.choice([max(least, small) for small in (0, 1, 1, 2, 3, 9)])
        if self.chance.random() < wild:
            value = self.chance.choice([least - 1, least, most, most + 1, low, high, high - 1])
        return min(max(value, low), high)

    def _real(self, bound: Any, wild: float) -> float:
        if self.chance.random() < wild:
            edges = [bound.least, bound.most] if isinstance(bound, Real) else []
            return self.chance.choice([*HOSTILE_REALS, *edges])
        return self.chance.choice([0.0, 0.5, 1.0, self.chance.random()])

    def _text(self, plausible: str, longest: int, wild: float) -> str:
        if self.chance.random() >= wild:
            return plausible
        return self.chance.choice([*HOSTILE_TEXTS, "x" * longest, "x" * (longest + 1), "", plausible])

    def _plausible(self, one: FieldDescriptor) -> str:
        """A text that fits a field of this name."""
        study = self.chance.choice(self.known.studies)
        number = self.chance.choice([0, 1, 2, 99])
        if one.name in self.known.given:
            return self.chance.choice(self.known.given[one.name])
        match one.name:
            case "request_id":
                return f"request-{self.chance.randrange(50)}"
            case "study_id":
                return f"fuzz-{self.chance.randrange(20)}"
            case "study" if one.containing_type is not None and one.containing_type.name == "WarmStart":
                return study
            case "study" | "parent":
                return f"studies/{study}"
            case "name" if one.containing_type is not None and one.containing_type.name.endswith("Request"):
                of_trial = "Trial" in one.containing_type.name
                return f"studies/{study}/trials/{number}" if of_trial else f"studies/{study}"
            case "trial":
                return f"studies/{study}/trials/{number}"
            case "lease_id":
                return self.chance.choice(self.known.runtime_leases)
            case "page_token":
                return self._token(one)
            case "worker" | "incarnation":
                return f"{one.name}-{self.chance.randrange(3)}"
            case "metric":
                return "loss"
            case "model_name":
                return self.chance.choice(["gpt3-2.7b", "gpt3-13b", "none"])
            case "cluster_name":
                return self.chance.choice(["a100-16", "a100-8", "a100-0", "a100-99999999999"])
            case "working_dir" | "log_dir" | "checkpoint_dir":
                return "/tmp"
            case _:
                return self.chance.choice(["x", "y", "loss", "", "random"])

    def _token(self, one: FieldDescriptor) -> str:
        """A token that the server issued, or a forged one with its checksum, over a hostile key."""
        if self.known.tokens and self.chance.random() < 0.5:
            return self.chance.choice(self.known.tokens)
        keys = (
            [2**63],
            [-(2**63) - 1],
            ["a\0"],
            [True],
            [[]],
            [1, 2, 3],
            [2**200] * 3,
            {"a": 1},
            [None],
            ["x" * 5000],
        )
        text = json.dumps(self.chance.choice(keys)).encode()
        text = self.chance.choice([text, b"\xff", b"[" * 5000, b"[" + b"9" * 5000 + b"]"])
        assert one.containing_type is not None
        binding = one.containing_type.name.encode() + b"\0"
        checksum = hashlib.blake2b(binding + b"\0" + text, digest_size=8, person=b"headrace page").digest()
        return base64.urlsafe_b64encode(checksum + text).decode().rstrip("=")


def _bound(one: FieldDescriptor) -> Any:
    """The bound of a field; None for those of health and reflection, which are not part of this contract."""
    message = one.containing_type
    return bound_of(one) if message is not None and message.full_name.startswith("headrace.") else None


def _fitting(element: Any) -> int:
    """How many copies of an element make the largest list that can still be sent."""
    match element:
        case Message():
            size = element.ByteSize()
        case bytes():
            size = len(element)
        case str():
            size = len(element.encode(errors="replace"))
        case _:
            size = 1
    return max(1, MOST_BYTES // (size + 8))


def _places(message: Message) -> Any:
    """Every field of a message and of the messages in it."""
    for one in message.DESCRIPTOR.fields:
        yield message, one
        if one.message_type is None or map_value(one) is not None or bound_of_duration(one):
            continue
        if one.is_repeated:
            for held in getattr(message, one.name):
                yield from _places(held)
        elif message.HasField(one.name):
            yield from _places(getattr(message, one.name))


def bound_of_duration(one: FieldDescriptor) -> bool:
    """Whether a field is a duration, whose own fields are not part of this contract."""
    return one.message_type is not None and not one.message_type.full_name.startswith("headrace.")
