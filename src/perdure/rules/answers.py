"""Answer controls: which answers a question takes, and whether an answer fits."""

from __future__ import annotations

from typing import Any, Final

from perdure.errors import AnswerInvalid, ContentTooLarge, InvalidControl
from perdure.records import canonical

OPTIONS: Final = 100
ANSWER_BYTES: Final = 64 * 1024
CUSTOM_TEXT_BYTES: Final = 8 * 1024
_LIMITS: Final = {"id": 128, "label": 256, "description": 2048}
_CHOICE_FIELDS: Final = {"type", "options", "multiple", "allow_text"}


def check_control(control: Any) -> bytes:
    """Return a control as canonical JSON, or raise `InvalidControl`.

    Controls are `{"type":"text"}` and `{"type":"choice","options":[{"id","label","value","description"?}],
    "multiple"?,"allow_text"?}` with 1 to 100 options.
    """
    if not isinstance(control, dict) or control.get("type") not in ("text", "choice"):
        raise InvalidControl('An answer control is {"type":"text"} or {"type":"choice","options":[…]}.')
    if control["type"] == "choice":
        _check_choice(control)
    elif set(control) != {"type"}:
        raise InvalidControl("A text control has no other fields.")
    return canonical.encode(control, "answer control")


def _check_choice(control: dict[str, Any]) -> None:
    options = control.get("options")
    if not set(control) <= _CHOICE_FIELDS:
        raise InvalidControl(f"A choice has unknown fields: {', '.join(sorted(set(control) - _CHOICE_FIELDS))}.")
    if not isinstance(options, list) or not 1 <= len(options) <= OPTIONS:
        raise InvalidControl(f"A choice has 1 to {OPTIONS} options.")
    for flag in ("multiple", "allow_text"):
        if not isinstance(control.get(flag, False), bool):
            raise InvalidControl(f"{flag} is true or false.")
    for option in options:
        _check_option(option)
    if len({option["id"] for option in options}) != len(options):
        raise InvalidControl("Two options have the same id.")


def _check_option(option: Any) -> None:
    if not isinstance(option, dict) or not {"id", "label", "value"} <= set(option) <= {*_LIMITS, "value"}:
        raise InvalidControl("An option has an id, a label, a value and maybe a description.")
    for field, limit in _LIMITS.items():
        text = option.get(field, "-")
        if not isinstance(text, str) or not text or len(text.encode("utf-8", "replace")) > limit:
            raise InvalidControl(f"An option's {field} is text of 1 to {limit} bytes.")


def check_answer(control_json: bytes, answer_json: bytes) -> None:
    """Raise `AnswerInvalid` unless the answer fits the control.

    A text control takes text. A choice takes `{"selected":[{"id","value"}…],"text"?}`: declared values, in the order of
    declaration, without repeats, and at least one of them or some text.
    """
    if len(answer_json) > ANSWER_BYTES:
        raise ContentTooLarge("answer", f"{len(answer_json)} bytes", f"{ANSWER_BYTES} bytes")
    control, answer = canonical.decode(control_json), canonical.decode(answer_json)
    if control["type"] == "text":
        if not isinstance(answer, str) or not answer:
            raise AnswerInvalid("a text answer is text that is not empty")
        return
    _check_selection(control, answer)


def _check_selection(control: dict[str, Any], answer: Any) -> None:
    if not isinstance(answer, dict) or not set(answer) <= {"selected", "text"}:
        raise AnswerInvalid('a choice is answered by {"selected":[{"id","value"}…]}, with "text" where it is allowed')
    selected, text = answer.get("selected", []), answer.get("text")
    _check_text(control, text)
    if not isinstance(selected, list):
        raise AnswerInvalid("selected is a list")
    _check_order(control["options"], selected)
    if len(selected) > 1 and not control.get("multiple", False):
        raise AnswerInvalid("only one option may be selected")
    if not selected and not text:
        raise AnswerInvalid("nothing is selected")


def _check_text(control: dict[str, Any], text: Any) -> None:
    if text is None:
        return
    if not control.get("allow_text", False):
        raise AnswerInvalid("this question takes no text")
    if not isinstance(text, str) or len(text.encode()) > CUSTOM_TEXT_BYTES:
        raise AnswerInvalid(f"text is at most {CUSTOM_TEXT_BYTES} bytes")


def _check_order(options: list[dict[str, Any]], selected: list[Any]) -> None:
    places = {option["id"]: (place, option["value"]) for place, option in enumerate(options)}
    last = -1
    for choice in selected:
        if not isinstance(choice, dict) or set(choice) != {"id", "value"} or not isinstance(choice["id"], str):
            raise AnswerInvalid('a selection is {"id","value"}')
        place, value = places.get(choice["id"], (None, None))
        if place is None:
            raise AnswerInvalid(f"there is no option {choice['id']!r}")
        if canonical.encode(value) != canonical.encode(choice["value"]):
            raise AnswerInvalid(f"option {choice['id']!r} has another value")
        if place <= last:
            raise AnswerInvalid("options are selected once each, in the order in which they were given")
        last = place
