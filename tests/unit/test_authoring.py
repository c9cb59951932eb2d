"""Agents, templates and images: what definitions say, and what they refuse."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure.errors import DefinitionError
from perdure.records.definitions import (
    CopyStep,
    EnvStep,
    RunStep,
    UserStep,
    WorkdirStep,
    decode_definition,
    encode_definition,
)
from perdure.records.sessions import Limits


def _image(id: str = "assistant") -> perdure.Image:
    return perdure.Image(id).from_("python:3.12-slim")


def _template(**options: Any) -> perdure.Template:
    return perdure.Template("assistant", **{"image": _image(), **options})


def _agent(**options: Any) -> perdure.Agent:
    agent = perdure.Agent("assistant", **options)

    @agent.turn
    async def turn(turn: Any, ctx: Any) -> None: ...

    return agent


def refused(make: Callable[[], object]) -> str:
    with pytest.raises(DefinitionError) as caught:
        make()
    return caught.value.message


class TestAgent:
    def test_the_tutorials_agent_is_a_process_agent_with_its_times(self) -> None:
        agent = _agent(
            template=_template(cpu=1, memory="1GiB"),
            close_after_idle="1d",
            hibernate_after_idle="5m",
            max_turn_duration="10m",
        )
        definition = agent.definition()
        assert definition.host == agent.host == "process"
        assert definition.limits == Limits(86_400_000_000, 300_000_000, 600_000_000)
        assert definition.template is not None
        assert (definition.template.cpu, definition.template.memory) == (1.0, 1024**3)

    def test_an_agent_without_a_template_is_inline_and_never_closes_by_itself(self) -> None:
        definition = _agent().definition()
        assert (definition.host, definition.template, definition.limits) == ("inline", None, Limits())

    def test_a_definition_knows_where_it_was_written(self) -> None:
        definition = _agent().definition()
        assert (definition.module, definition.file) == (__name__, __file__)
        assert "perdure.Agent" in linecache.getline(__file__, definition.line)

    def test_a_definition_survives_storage(self) -> None:
        image = _image().run(["pip", "install", "ruff"]).env(A="1")
        definition = _agent(template=_template(image=image, disk="2GiB", env={"B": "2"}, pass_env=["C"])).definition()
        assert decode_definition(encode_definition(definition)) == definition

    def test_a_field_of_a_newer_version_is_passed_over(self) -> None:
        newer = encode_definition(_agent().definition()).replace(b"{", b'{"from_the_future":1,', 1)
        assert decode_definition(newer).id == "assistant"

    def test_decorators_return_the_handler_and_note_init(self) -> None:
        agent = _agent()
        assert agent.definition().has_init is False

        async def init(ctx: Any) -> int:
            return 1

        assert agent.init(init) is init
        assert agent.definition().has_init is True

    def test_wrapped_coroutine_functions_are_handlers(self) -> None:
        agent = perdure.Agent("a")

        async def turn(extra: int, turn: Any, ctx: Any) -> None: ...

        agent.turn(functools.partial(turn, 1))
        assert agent.definition().id == "a"

    @pytest.mark.parametrize("id", ["", " a", "-a", "a/b", "a" * 129, "ä", "a\n", None, 7])
    def test_wrong_ids_are_refused(self, id: Any) -> None:
        assert repr(id) in refused(lambda: perdure.Agent(id))

    @pytest.mark.parametrize("id", ["a", "A.b_c-9", "0", "a" * 128])
    def test_right_ids_are_taken(self, id: str) -> None:
        assert perdure.Agent(id).id == id

    @pytest.mark.parametrize("field", ["close_after_idle", "max_turn_duration"])
    @pytest.mark.parametrize("text", ["0s", "1.5h", "1h30m", "5", "-1s", "5 m", "5M", "", "9999999d", 300, b"5m"])
    def test_wrong_durations_are_refused_by_name(self, field: str, text: Any) -> None:
        message = refused(lambda: perdure.Agent("a", **{field: text}))
        assert "Agent 'a'" in message
        assert field in message
        assert repr(text) in message

    def test_hibernation_needs_a_template(self) -> None:
        assert "needs a template" in refused(lambda: perdure.Agent("a", hibernate_after_idle="5m"))

    def test_a_template_must_be_a_template(self) -> None:
        assert "not a str" in refused(lambda: perdure.Agent("a", template="assistant"))  # type: ignore[arg-type]

    def test_a_second_handler_is_refused_and_the_first_stays(self) -> None:
        agent = _agent()
        first = agent.turn_handler

        async def again(turn: Any, ctx: Any) -> None: ...

        async def init(ctx: Any) -> None: ...

        assert "already" in refused(lambda: agent.turn(again))
        agent.init(init)
        assert "already" in refused(lambda: agent.init(init))
        assert agent.turn_handler is first

    def test_plain_functions_are_refused_with_the_way_out(self) -> None:
        def turn(turn: Any, ctx: Any) -> None: ...

        async def stream(turn: Any, ctx: Any) -> Any:
            yield 1

        agent = perdure.Agent("a")
        assert "async def turn(turn, ctx)" in refused(lambda: agent.turn(turn))  # type: ignore[type-var]
        assert "async def" in refused(lambda: agent.turn(stream))  # type: ignore[type-var]
        assert "async def" in refused(lambda: agent.init(None))  # type: ignore[type-var]

    def test_handlers_with_the_wrong_arguments_are_refused(self) -> None:
        async def one(turn: Any) -> None: ...

        async def none() -> None: ...

        agent = perdure.Agent("a")
        assert "(turn, ctx)" in refused(lambda: agent.turn(one))  # type: ignore[type-var]
        assert "(ctx)" in refused(lambda: agent.init(none))  # type: ignore[type-var]

    def test_an_agent_without_a_turn_handler_has_no_definition(self) -> None:
        assert "no turn handler" in refused(lambda: perdure.Agent("a").definition())


class TestTemplate:
    @pytest.mark.parametrize(("text", "size"), [("512MiB", 512 * 1024**2), ("3GiB", 3 * 1024**3)])
    def test_sizes_are_bytes(self, text: str, size: int) -> None:
        definition = _template(memory=text, disk=text).definition()
        assert (definition.memory, definition.disk) == (size, size)

    @pytest.mark.parametrize(
        "text", ["0MiB", "1GB", "1.5GiB", "1024", "GiB", "", " 1GiB", "99999999999GiB", 1024, None]
    )
    def test_wrong_sizes_are_refused(self, text: Any) -> None:
        assert f"memory={text!r}" in refused(lambda: _template(memory=text))

    @pytest.mark.parametrize("cpu", [0, -1, True, "2", None, float("nan"), float("inf"), 2000])
    def test_wrong_cpus_are_refused(self, cpu: Any) -> None:
        assert f"cpu={cpu!r}" in refused(lambda: _template(cpu=cpu))

    def test_a_fraction_of_a_cpu_is_taken(self) -> None:
        assert _template(cpu=0.25).definition().cpu == 0.25

    @pytest.mark.parametrize(
        ("env", "said"),
        [
            ({"A B": "1"}, "cannot name"),
            ({"PERDURE_X": "1"}, "reserved"),
            ({"A": 1}, "write text"),
            ({"A": "a\0b"}, "NUL"),
            ({"A": "\ud800"}, "surrogate"),
            ({f"A{n}": "" for n in range(129)}, "the limit is 128"),
            ({"A": "x" * 256 * 1024}, "the limit is 262144"),
        ],
    )
    def test_wrong_environments_are_refused(self, env: Any, said: str) -> None:
        assert said in refused(lambda: _template(env=env))

    def test_passed_names_are_checked_and_not_both_set_and_passed(self) -> None:
        assert "list of names" in refused(lambda: _template(pass_env="HOME"))
        assert "both" in refused(lambda: _template(env={"A": "1"}, pass_env=["A"]))
        assert _template(pass_env=["A", "B", "A"]).definition().pass_env == ("A", "B")

    def test_an_image_must_be_one_with_a_base(self) -> None:
        assert "no base image" in refused(lambda: _template(image=perdure.Image("x")))
        assert "not a str" in refused(lambda: _template(image="python:3.12"))


class TestImage:
    def test_steps_are_kept_in_order(self) -> None:
        image = (
            _image().run(["apt-get", "update"]).copy("/app", "tools/./x").workdir("/app/").env(A="1").user("1000:1000")
        )
        assert image.definition().steps == (
            RunStep(("apt-get", "update")),
            CopyStep("/app", "tools/x"),
            WorkdirStep("/app"),
            EnvStep({"A": "1"}),
            UserStep("1000:1000"),
        )

    def test_a_chain_changes_no_earlier_image(self) -> None:
        base = _image()
        one, two = base.run(["one"]), base.run(["two"])
        assert base.definition().steps == ()
        assert one.definition().steps != two.definition().steps

    def test_the_base_comes_first_and_once(self) -> None:
        assert "from_() first" in refused(lambda: perdure.Image("x").run(["a"]))
        assert "already" in refused(lambda: _image().from_("debian"))

    @pytest.mark.parametrize("reference", ["", "a b", "a\n", "x" * 513, None])
    def test_wrong_references_are_refused(self, reference: Any) -> None:
        assert "Image 'x'" in refused(lambda: perdure.Image("x").from_(reference))

    @pytest.mark.parametrize("argv", ["pip install", [], [1], None, ["a\0"], ["x"] * 1025, ["x" * 65537]])
    def test_wrong_commands_are_refused(self, argv: Any) -> None:
        assert "Image 'assistant'" in refused(lambda: _image().run(argv))

    @pytest.mark.parametrize(
        ("dest", "source"), [("app", "x"), ("/a/../b", "x"), ("/a", "/x"), ("/a", "../x"), ("/a", "")]
    )
    def test_copies_stay_inside(self, dest: str, source: str) -> None:
        assert "path" in refused(lambda: _image().copy(dest, source))

    def test_other_wrong_steps_are_refused(self) -> None:
        assert "absolute" in refused(lambda: _image().workdir("app"))
        assert "user" in refused(lambda: _image().user("a b"))
        assert "reserved" in refused(lambda: _image().env(PERDURE_HOME="x"))

    def test_the_number_of_steps_is_bounded(self) -> None:
        image = functools.reduce(lambda image, _: image.user("a"), range(10), _image())
        image._steps = image._steps * 1000
        assert "limit" in refused(lambda: image.user("a"))
